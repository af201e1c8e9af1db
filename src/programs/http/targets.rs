//! The endpoints of the job's tasks, in the form in which Prometheus discovers them (`http_sd_configs`).

use std::collections::BTreeMap;

use pushpull_messages::id::TaskId;
use pushpull_messages::observe::{ChiefSnapshot, TaskRow};
use serde::Serialize;

/// A group of targets: the addresses of endpoints, and the labels that Prometheus adds to every metric that
/// it reads from these endpoints.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct TargetGroup {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

/// Returns all endpoints that the chief knows. Tasks of one process share an endpoint. Such an endpoint is
/// listed once, with the labels of the first of its tasks.
///
/// `certifies` is true if the chief has made the certificates of the tasks. The certificate of a worker that
/// the cluster spec does not list then names no host: the chief cannot know which host is the worker's, and
/// one that could choose a name could pretend to be another host. Prometheus would refuse the certificate, so
/// such an endpoint is left out if it speaks HTTPS.
pub(super) fn targets(job: &ChiefSnapshot, own: &str, certifies: bool) -> Vec<TargetGroup> {
    let mut groups: Vec<TargetGroup> = Vec::new();
    let is_named = |row: &TaskRow, http: &str| {
        let is_listed = !row.address.is_empty();
        is_listed || !certifies || !http.starts_with("https://")
    };
    let listed = job
        .tasks
        .iter()
        .filter_map(|row| Some((row.task, row.http.clone().filter(|http| is_named(row, http))?)));
    let own = std::iter::once((TaskId::CHIEF, own.to_owned()));
    for (task, address) in own.chain(listed) {
        let (scheme, address) = match address.split_once("://") {
            Some((scheme, address)) => (scheme.to_owned(), address.to_owned()),
            None => ("http".to_owned(), address),
        };
        if groups.iter().all(|group| group.targets[0] != address) {
            let (job, index) = (task.job.to_string(), task.index.to_string());
            let labels = [("__scheme__", scheme), ("job", job), ("task", index)].into();
            groups.push(TargetGroup { targets: [address], labels });
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_listed_once_with_its_task() {
        let row = |task, http: Option<&str>| TaskRow {
            task,
            address: "a:1".into(),
            http: http.map(Into::into),
            reachable: true,
            lives: 1,
        };
        let tasks = vec![
            row(TaskId::CHIEF, Some("c:9")),
            row(TaskId::ps(0), Some("https://p:9")),
            row(TaskId::worker(0), None),
            row(TaskId::worker(1), Some("c:9")),
        ];
        let told = targets(&ChiefSnapshot { tasks, ..Default::default() }, "c:9", true);
        let json = serde_json::to_value(told).unwrap();
        let expected = serde_json::json!([
            {"targets": ["c:9"], "labels": {"__scheme__": "http", "job": "chief", "task": "0"}},
            {"targets": ["p:9"], "labels": {"__scheme__": "https", "job": "ps", "task": "0"}},
        ]);
        assert_eq!(json, expected);
    }

    #[test]
    fn only_endpoints_that_a_certificate_names_are_listed() {
        let row = |task, address: &str, http: &str| TaskRow {
            task,
            address: address.into(),
            http: Some(http.into()),
            reachable: true,
            lives: 1,
        };
        let tasks = vec![
            row(TaskId::worker(0), "w0:1", "https://w0:9"),
            row(TaskId::worker(1), "", "https://node-17:9"),
            row(TaskId::worker(2), "", "node-18:9"),
        ];
        let job = ChiefSnapshot { tasks, ..Default::default() };
        let listed = |certifies| -> Vec<String> {
            targets(&job, "c:9", certifies).into_iter().map(|group| group.targets[0].clone()).collect()
        };
        assert_eq!(listed(true), ["c:9", "w0:9", "node-18:9"]);
        assert_eq!(listed(false), ["c:9", "w0:9", "node-17:9", "node-18:9"]);
    }
}
