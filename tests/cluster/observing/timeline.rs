//! Tests of the timeline of a whole job: one push can be followed from the backward pass to the shard and
//! back.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::harness::{Cluster, Job, Running};

const STEPS: u64 = 400;

struct Span<'a> {
    task: &'a str,
    lane: &'a str,
    name: &'a str,
    start: f64,
    end: f64,
    event: &'a Value,
}

/// Checks that each arrow that begins also ends.
fn check_arrows(events: &[Value]) {
    let flows = |phase: &str| events.iter().filter(|event| event["ph"] == *phase).count();
    assert!(flows("s") > 0 && flows("s") == flows("f"), "{} and {}", flows("s"), flows("f"));
}

/// Checks that the first traced step of a worker shows its matrix products, and no other step does.
fn check_operations(worker: &str, spans: &[Span<'_>]) {
    let is_product = |span: &&Span<'_>| span.task == worker && span.name.starts_with("Product ");
    let mut steps = spans.iter().filter(is_product).map(|span| &span.event["args"]["local_step"]).peekable();
    assert!(steps.peek().is_some(), "{worker} shows no operation");
    assert!(steps.all(|step| *step == 0), "{worker} shows operations of several steps");
}

#[test]
fn a_push_can_be_followed_through_the_whole_cluster() {
    let mut cluster = Cluster::with(1, 2, 2, |dir| Job::with(dir, STEPS, &["--sync=sync"]));
    let trace = cluster.dir().join("trace.json");
    let file = format!("--trace={}", trace.display());
    cluster.chief_flags = vec![file, "--trace-every=10".into(), "--trace-ops=1".into()];
    let mut running = Running::of(cluster, &[]);
    running.end_well_without(&[]);
    let events: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(&trace).expect("a trace")).expect("a list of events");
    let text = |event: &'_ Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let mut processes: BTreeMap<u64, String> = BTreeMap::new();
    let mut lanes: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let ids = |event: &Value| (event["pid"].as_u64().expect("a pid"), event["tid"].as_u64().unwrap_or(0));
    for event in events.iter().filter(|event| event["ph"] == "M") {
        let name = event["args"]["name"].as_str().unwrap_or_default().to_owned();
        match text(event, "name").as_str() {
            "process_name" => drop(processes.insert(ids(event).0, name)),
            "thread_name" => drop(lanes.insert(ids(event), name)),
            _ => {}
        }
    }
    for task in ["worker/0", "worker/1", "ps/0", "ps/1"] {
        assert!(processes.values().any(|name| name == task), "{task} is not in {processes:?}");
    }
    let spans: Vec<Span<'_>> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let start = event["ts"].as_f64().expect("a time");
            let end = start + event["dur"].as_f64().expect("a duration");
            let (task, lane) = (processes[&ids(event).0].as_str(), lanes[&ids(event)].as_str());
            Span { task, lane, name: event["name"].as_str().expect("a name"), start, end, event }
        })
        .collect();
    let named = |task: &str, name: &str| -> Vec<&Span<'_>> {
        spans.iter().filter(|span| span.task == task && span.name == name).collect()
    };
    for worker in ["worker/0", "worker/1"] {
        let steps = named(worker, "step");
        check_operations(worker, &spans);
        // One in ten steps is traced. Some of them are missing, because they did not fit into a report.
        assert!(steps.len() as u64 >= STEPS / 10 / 2, "{worker} has {} traced steps", steps.len());
        let mut followed = 0;
        for push in named(worker, "push") {
            let id = &push.event["args"]["push"];
            assert!(!id.is_null(), "{}", push.event);
            let shard = push.lane.strip_prefix("to ").expect("a lane of pushes");
            let (task, number) = shard.split_once("/shard/").expect("a shard");
            let lane = format!("shard/{number}");
            let applied = spans.iter().find(|span| {
                span.task == task
                    // If the pushes of several workers overlap, one of them is drawn in an additional row.
                    && (span.lane == lane || span.lane.starts_with(&format!("{lane} (")))
                    && span.name == "apply"
                    && span.event["args"]["push"] == *id
                    && span.event["args"]["shard"] == push.event["args"]["shard"]
            });
            let applied = applied.unwrap_or_else(|| panic!("{} is applied nowhere", push.event));
            // The clocks are aligned, so the update lies within the time of the push.
            assert!(push.start <= applied.start && applied.end <= push.end, "{}", push.event);
            let step = steps.iter().find(|step| step.start <= push.start && push.end <= step.end);
            let step = step.unwrap_or_else(|| panic!("{} is part of no step", push.event));
            let computed = named(worker, "compute");
            assert!(computed.iter().any(|span| step.start <= span.start && span.end <= step.end));
            followed += 1;
        }
        assert!(followed >= 2 * (STEPS / 10 / 2), "{worker}: {followed} pushes");
    }
    check_arrows(&events);
}
