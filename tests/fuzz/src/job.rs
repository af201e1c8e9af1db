//! The target `job`: parses text as a job file.

use pushpull_messages::job::JobSpec;

use crate::corpus::Form;
use crate::fixtures;
use crate::fixtures::any_stage::staged_job;
use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "job",
    check,
    stages: &["no job", "not valid", "valid", "can start"],
    seeds,
    form: Form::Json,
    ..Target::USUAL
};

/// Checks one input. The first byte is the number of workers.
fn check(bytes: &[u8]) -> usize {
    let Some((&workers, text)) = bytes.split_first() else { return 0 };
    let Ok(text) = std::str::from_utf8(text) else { return 0 };
    let job = match JobSpec::from_json(text) {
        Ok(job) => job,
        Err(error) => {
            check_error(&error);
            return usize::from(JobSpec::parse_json(text).is_ok());
        }
    };
    let again = JobSpec::from_json(&job.to_json()).expect("what was written can be read");
    assert!(again.to_json_line() == job.to_json_line(), "another job was read than was written");
    let workers = u32::from(workers);
    let _ = (job.digest(), job.epochs(workers), job.replicas(workers.max(1)), job.step_examples());
    let (_, _) = (job.update(), job.sent_as());
    let elastic = job.validate_elastic(workers);
    for result in [job.validate_start(workers), elastic] {
        if let Err(error) = result {
            check_error(&error);
            return 2;
        }
    }
    3
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let jobs = [0, 1, 3, 4, 5, 7, 11].map(|seed| fixtures::job(4, seed)).into_iter().chain([staged_job(2)]);
    jobs.enumerate()
        .map(|(at, job)| (format!("{at}"), [&[2], job.to_json_line().as_bytes()].concat()))
        .collect()
}
