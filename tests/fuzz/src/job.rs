//! The target `job`: parses text as a job file.

use pushpull_messages::job::JobSpec;
use serde_json::{Value, json};

use crate::corpus::Form;
use crate::fixtures;
use crate::fixtures::any_stage::staged_job;
use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "job",
    about: &[
        "messages/src/job.rs",
        "messages/src/cadence.rs",
        "messages/src/communication.rs",
        "messages/src/compression",
        "messages/src/distribution.rs",
        "messages/src/input",
        "messages/src/optimizer",
        "messages/src/sync.rs",
    ],
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

/// Returns settings that the usual job does not have.
fn settings() -> [Value; 9] {
    let adam = |name: &str| json!({name: {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}});
    let stage = |stage: Value| json!({"column": "features", "stage": stage});
    let maps = [
        json!({"scale": {"factor": 0.5, "offset": 1.0}}),
        json!({"standardise": {"mean": [0.5], "stddev": [2.0]}}),
        json!({"one_hot": {"classes": 3}}),
        json!({"random_crop": {"pad": 2, "size": [3, 4]}}),
        json!("random_flip"),
    ];
    let group = json!({"variables": "ker*", "learning_rate_factor": 0.5, "weight_decay": 0.1,
        "optimizer": {"sgd": {"learning_rate": 0.5}}});
    let momentum = json!({"momentum": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": true}});
    let rms_prop = json!({"rmsprop": {"learning_rate": 0.1, "decay": 0.9, "momentum": 0.5, "epsilon": 1e-7}});
    let ada_grad = json!({"adagrad": {"learning_rate": 0.1, "initial_accumulator": 0.1, "epsilon": 1e-7}});
    let ftrl = json!({"ftrl": {"learning_rate": 0.1, "initial_accumulator": 0.1, "l1": 0.1, "l2": 0.1}});
    let lion = json!({"lion": {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}});
    [
        json!({"optimizer": {"sgd": {"learning_rate": 0.5}}, "groups": [group], "schedule": "step:100:0.5"}),
        json!({"optimizer": momentum, "sync": "sync", "communication": "ring",
            "strategy": "multi_worker_mirrored", "deterministic": true}),
        json!({"optimizer": adam("adamw"), "compression": [{"variables": "*", "gradients": "top-k:0.01"}]}),
        json!({"optimizer": ada_grad, "strategy": "one_device", "eval_every": {"steps": 5},
            "compression": [{"variables": "kernel", "gradients": "int8", "values": "bf16"}]}),
        json!({"optimizer": rms_prop, "pipeline": 2, "schedule": "exponential:100:0.5", "epoch_examples": 7}),
        json!({"optimizer": ftrl, "sync": "bounded:2", "eval_every": "epoch", "epoch_examples": 100}),
        json!({"optimizer": adam("lamb"), "sync": "sync:2", "average": 0.9, "average_variables": ["ker*"]}),
        json!({"optimizer": lion, "sync": "sync", "communication": "halving_doubling", "weight_decay": 0.1}),
        json!({"map": maps.map(stage), "accumulate": 2}),
    ]
}

/// Returns jobs with settings that the usual one does not have.
fn unusual() -> impl Iterator<Item = JobSpec> {
    settings().into_iter().zip(0..).map(|(settings, seed)| {
        let mut job = fixtures::job(4, seed).to_value();
        for (key, value) in settings.as_object().into_iter().flatten() {
            let of = if key == "map" { &mut job["input"] } else { &mut job };
            of[key] = value.clone();
        }
        JobSpec::from_json(&job.to_string()).expect("a valid job")
    })
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let jobs = [0, 1, 3, 4, 5, 7, 11]
        .map(|seed| fixtures::job(4, seed))
        .into_iter()
        .chain([staged_job(2)])
        .chain(unusual());
    jobs.enumerate()
        .map(|(at, job)| (format!("{at}"), [&[2], job.to_json_line().as_bytes()].concat()))
        .collect()
}
