//! Tests of the files for Prometheus and Grafana: Prometheus accepts its files, can parse the dashboard's
//! queries, and raises the alerts in the right situations.

use std::path::Path;

use serde_json::Value;

use crate::promtool::promtool;
use crate::{deployed, read};

/// Runs promtool on a file, and panics if promtool does not accept the file.
fn check(arguments: &[&str], file: &Path) {
    promtool(&[arguments, &[&file.to_string_lossy()]].concat(), "");
}

#[test]
fn prometheus_takes_its_configuration_and_rules() {
    // The files with the token and the certificate exist only beside a job.
    check(&["check", "config", "--syntax-only"], &deployed("prometheus/prometheus.yml"));
    check(&["check", "rules"], &deployed("prometheus/alerts.yml"));
}

#[test]
fn alerts_are_raised_when_they_should_be() {
    check(&["test", "rules"], &deployed("prometheus/alerts_test.yml"));
}

#[test]
fn the_dashboard_asks_questions_that_prometheus_understands() {
    let dashboard: Value =
        serde_json::from_str(&read(&deployed("grafana/pushpull.json"))).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (nth, target) in targets.enumerate() {
        let asked = target["expr"].as_str().expect("a target asks").replace("$__rate_interval", "1m");
        // A JSON string is also valid in YAML.
        rules += &format!("  - record: dashboard:{nth}\n    expr: {}\n", Value::from(asked));
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("dashboard.yml");
    std::fs::write(&file, rules).expect("the folder can be written");
    check(&["check", "rules"], &file);
}
