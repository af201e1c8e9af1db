//! Tests of every role's endpoint while a job trains: the responses for Prometheus, probes and people are
//! correct.

use pushpull_messages::id::{JobName, TaskId};
use serde_json::Value;

use crate::harness::{Cluster, ENDLESS, Endpoint, Job, PATIENCE, Program, role, wait_until};
use crate::promtool::promtool;

fn check_metrics_and_actors(task: TaskId, endpoint: &Endpoint) {
    let text = endpoint.get("/metrics");
    let said = promtool(&["check", "metrics"], &text);
    // promtool also prints suggestions, although it succeeds.
    assert!(said.as_deref().is_none_or(|said| said.trim().is_empty()), "{task}: {said:?}\n{text}");
    let (job, index) = (task.job.to_string(), task.index.to_string());
    let metrics = endpoint.metrics();
    let own = [("job", job.as_str()), ("task", index.as_str())];
    let ready = [("job", job.as_str()), ("task", index.as_str()), ("state", "ready")];
    assert_eq!(metrics.count("pushpull_task_state", &ready), 1, "{text}");
    assert_eq!(metrics.count("pushpull_task_state", &own), 1, "one state at a time");
    let actors = endpoint.json("/actors");
    let actors = actors.as_array().expect("a list");
    assert!(!actors.is_empty(), "{task} has actors");
    for actor in actors {
        for key in ["name", "state", "queue", "handled", "handling_p50_ms", "handling_p99_ms"] {
            assert!(!actor[key].is_null() || key.ends_with("_ms"), "{key} in {actor}");
        }
    }
    let handled: u64 = actors.iter().filter_map(|actor| actor["handled"].as_u64()).sum();
    assert!(handled > 0, "the actors of {task} have handled something: {actors:?}");
}

#[test]
fn every_role_shows_what_it_does() {
    let cluster = Cluster::with(1, 2, 2, |dir| Job::with(dir, ENDLESS, &["--optimizer=adam"]));
    let checkpoints = cluster.dir().join("checkpoints");
    let chief_flags = [format!("--checkpoint-dir={}", checkpoints.display()), "--save-steps=200".into()];
    let mut programs: Vec<(TaskId, Program)> = Vec::new();
    for (task, _) in cluster.spec.tasks() {
        let flags = if task == TaskId::CHIEF { &chief_flags[..] } else { &[] };
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut command = cluster.role(task);
        command.args(flags).env_remove("PUSHPULL_HTTP_TOKEN");
        programs.push((task, cluster.spawn(task, &mut command)));
    }
    let mut evaluator = role(JobName::Evaluator);
    evaluator.arg(format!("--checkpoint-dir={}", checkpoints.display()));
    let evaluator = Program::start(cluster.dir(), "evaluator", &mut evaluator);
    programs.push((TaskId::new(JobName::Evaluator, 0), evaluator));
    let endpoints: Vec<(TaskId, Endpoint)> =
        programs.iter_mut().map(|(task, program)| (*task, Endpoint::of(program))).collect();
    for (task, endpoint) in &endpoints {
        wait_until(&format!("{task} to be ready"), PATIENCE, || {
            (endpoint.ask("/readyz").0 == 200).then_some(())
        });
        assert_eq!(endpoint.get("/healthz").trim(), "ok");
        let config = endpoint.json("/config");
        assert_eq!(config["tasks"], serde_json::json!([task.to_string()]), "{config}");
        let flags = config["flags"].as_array().expect("a list of flags");
        assert!(flags.iter().any(|flag| flag["name"] == "http-addr"), "{config}");
    }
    let chief = &endpoints[0].1;
    wait_until("a checkpoint that is evaluated, and a few steps of everybody", PATIENCE, || {
        let job = chief.json("/job");
        let saved = job["checkpoints"]["saves"].as_u64()? >= 2;
        let steps = job["workers"].as_array()?.iter().all(|worker| worker["local_step"].as_u64() > Some(10));
        (saved && steps && !job["evaluation"].is_null()).then_some(())
    });
    let job = chief.json("/job");
    let accuracy = job["metrics"][0]["value"].as_f64();
    assert!(accuracy.is_some_and(|accuracy| (0.0..=1.0).contains(&accuracy)), "{job}");
    for (task, endpoint) in &endpoints {
        check_metrics_and_actors(*task, endpoint);
    }
    // The chief lists the endpoints of all tasks.
    let targets = chief.json("/targets");
    let found: Vec<&Value> = targets
        .as_array()
        .expect("a list")
        .iter()
        .flat_map(|group| group["targets"].as_array())
        .flatten()
        .collect();
    for (task, endpoint) in &endpoints[..5] {
        assert!(found.iter().any(|target| **target == endpoint.0.as_str()), "{task} is not in {targets}");
    }
    // The chief accepts requests to save or stop only with a token.
    let refused = ureq::post(format!("http://{}/save", chief.0)).send_empty();
    assert!(matches!(refused, Err(ureq::Error::StatusCode(403))), "{refused:?}");
}
