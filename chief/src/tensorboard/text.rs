//! The job's settings as a Markdown table. All fields of the job except the graph are listed generically, so
//! a new field needs no change here.

use pushpull_messages::job::JobSpec;
use serde_json::Value;

/// The maximum number of characters shown for one setting. The limit is needed because an input may list any
/// number of files and words.
const SHOWN_MAX: usize = 400;

/// Returns a table with a row for each setting of the job, and with rows for the size of its graph.
pub(super) fn table(job: &JobSpec) -> String {
    let graph = &job.graph;
    let elements: usize = graph.variables.iter().map(|variable| variable.shape.elements()).sum();
    let mut rows = vec![
        row("model", &graph.name),
        row("variables", &format!("{} with {elements} elements", graph.variables.len())),
        row("operations", &graph.nodes.len().to_string()),
    ];
    if let Value::Object(settings) = job.to_value() {
        rows.extend(settings.iter().filter(|(name, _)| *name != "graph").map(|(name, value)| match value {
            Value::String(words) => row(name, words),
            other => row(name, &other.to_string()),
        }));
    }
    format!("| setting | value |\n|---|---|\n{}", rows.concat())
}

fn row(name: &str, value: &str) -> String {
    let mut shown: String = value.chars().take(SHOWN_MAX).collect();
    if shown.len() < value.len() {
        shown.push_str(" …");
    }
    // An unescaped bar would start another column.
    format!("| {name} | {} |\n", shown.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::job;

    #[test]
    fn every_setting_has_a_bounded_row() {
        let mut job = job();
        job.graph.name = "a|b".repeat(1000);
        job.weight_decay = 0.1;
        let table = table(&job);
        assert!(table.starts_with("| setting | value |\n|---|---|\n| model | a\\|ba\\|b"), "{table}");
        for row in [
            "| variables | 1 with 6 elements |",
            "| sync | async |",
            "| last_step | 10 |",
            "| batch_size | 1 |",
            // As in the job file, and not with the digits of an f64.
            "| weight_decay | 0.1 |",
        ] {
            assert!(table.lines().any(|line| line == row), "{row} is not in\n{table}");
        }
        assert!(
            table
                .lines()
                .all(|line| line.len() < 2 * SHOWN_MAX && line.ends_with(" |") || line == "|---|---|")
        );
    }
}
