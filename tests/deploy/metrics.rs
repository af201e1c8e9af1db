//! Tests that the deployment files use only metrics that exist.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::{deployed, read};

/// Returns all names in a text that may be metrics of pushpull. The suffixes that Prometheus adds to the
/// name of a histogram are removed.
fn names(text: &str, of: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let mut names = BTreeSet::new();
    for word in words.filter(|word| word.starts_with("pushpull_")) {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        names.insert(base.filter(|base| of(base)).unwrap_or(word).to_owned());
    }
    names
}

/// Returns the names of the metrics that the program defines.
fn families() -> BTreeSet<String> {
    let table = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/programs/http/metrics/families.rs"));
    names(&table, |_| false)
}

#[test]
fn what_is_asked_for_is_there() {
    let families = families();
    assert!(families.contains("pushpull_job_step") && families.len() > 30, "{families:?}");
    for file in ["prometheus/alerts.yml", "prometheus/alerts_test.yml", "grafana/pushpull.json"] {
        let asked = names(&read(&deployed(file)), |base| families.contains(base));
        let unknown: Vec<_> = asked.difference(&families).collect();
        assert!(asked.len() > 3, "{file} asks for {asked:?} only");
        assert!(
            unknown.is_empty(),
            "{file} asks for {unknown:?}, which src/programs/http/metrics/families.rs does not list"
        );
    }
}

#[test]
fn a_name_that_is_not_there_is_noticed() {
    let known = |base: &str| base == "pushpull_apply_seconds";
    let asked = names("rate(pushpull_apply_seconds_bucket[1m]) / pushpull_nothing_sum + up", known);
    assert_eq!(asked, ["pushpull_apply_seconds", "pushpull_nothing_sum"].map(str::to_owned).into());
}

#[test]
fn the_dashboard_has_panels_that_do_not_overlap() {
    let dashboard: Value =
        serde_json::from_str(&read(&deployed("grafana/pushpull.json"))).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("a panel has an id")), "{panel}");
        let number = |name: &str| panel["gridPos"][name].as_u64().expect("a panel has a place");
        let (x, y, width, height) = (number("x"), number("y"), number("w"), number("h"));
        assert!(x + width <= 24, "{panel}");
        for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{panel} overlaps another one");
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()), "{panel}");
        }
    }
    assert!(panels.len() > 20);
}
