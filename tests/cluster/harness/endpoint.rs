//! A client of the HTTP endpoint of a task.

use std::collections::BTreeMap;
use std::time::Duration;

use pushpull_messages::id::TaskId;
use serde_json::Value;

use super::program::Program;
use super::wait::{PATIENCE, wait_until};

/// A task's endpoint, given by its address.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint(pub(crate) String);

impl Endpoint {
    /// Waits until a program has logged the address of its endpoint, and returns the endpoint.
    #[track_caller]
    pub(crate) fn of(program: &mut Program) -> Self {
        Self::said_by(program, "")
    }

    /// Does the same for one of several tasks whose logs `pushpull local` merges.
    #[track_caller]
    pub(crate) fn of_task(program: &mut Program, task: TaskId) -> Self {
        Self::said_by(program, &format!("[{task}] "))
    }

    /// Waits for the address in a line that begins with `name`.
    #[track_caller]
    fn said_by(program: &mut Program, name: &str) -> Self {
        let rest = program.wait_for_line(name, "observe this task at http://");
        Self(rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect())
    }

    /// Waits until a shard of this process has applied an update. The chief's page would show that one or two
    /// seconds later.
    #[track_caller]
    pub(crate) fn wait_for_update(&self) {
        wait_until("an update", PATIENCE, || {
            self.metrics().sum("pushpull_shard_version", &[]).filter(|&version| version > 0.0)
        });
    }

    /// Requests a path, and returns the status and the body of the response.
    #[track_caller]
    pub(crate) fn ask(&self, path: &str) -> (u16, String) {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(10)))
            .http_status_as_error(false)
            .build();
        let url = format!("http://{}{path}", self.0);
        let mut answer = match ureq::Agent::new_with_config(config).get(&url).call() {
            Ok(answer) => answer,
            Err(error) => panic!("{url}: {error}"),
        };
        let body = answer.body_mut().read_to_string().unwrap_or_else(|error| panic!("{url}: {error}"));
        (answer.status().as_u16(), body)
    }

    /// Requests a path that must exist, and returns the body of the response.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> String {
        let (status, body) = self.ask(path);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Requests that the job stop, and returns the status of the response.
    #[track_caller]
    pub(crate) fn stop(&self, token: &str) -> u16 {
        let url = format!("http://{}/stop", self.0);
        match ureq::post(&url).header("Authorization", format!("Bearer {token}")).send_empty() {
            Ok(answer) => answer.status().as_u16(),
            Err(ureq::Error::StatusCode(status)) => status,
            Err(error) => panic!("{url}: {error}"),
        }
    }

    #[track_caller]
    pub(crate) fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[track_caller]
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::parse(&self.get("/metrics"))
    }
}

/// The samples of one scrape, parsed from Prometheus' text format.
#[derive(Debug)]
pub(crate) struct Metrics(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// # Panics
    /// Panics if a line is not a sample. Escaped label values are not decoded.
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (what, value) = line.rsplit_once(' ')?;
            let (name, labels) = match what.split_once('{') {
                Some((name, rest)) => (name, rest.strip_suffix('}')?),
                None => (what, ""),
            };
            let label = |pair: &str| {
                let (key, value) = pair.split_once("=\"")?;
                Some((key.trim_start_matches(',').to_owned(), value.to_owned()))
            };
            let labels = labels.split_terminator('"').collect::<Vec<_>>();
            let labels = labels.chunks(2).map(|two| label(&two.join("\""))).collect::<Option<_>>()?;
            Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? })
        };
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Self(lines.map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line}"))).collect())
    }

    /// Returns the sum of all samples with this name and these labels; `None` if there are none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |sample: &&Sample| {
            let has = |(key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|own| own == value);
            sample.name == name && labels.iter().all(has)
        };
        self.0.iter().filter(fits).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    #[track_caller]
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let value = self.sum(name, labels).unwrap_or_else(|| panic!("no {name} with {labels:?}"));
        assert!(value >= 0.0 && value.fract() == 0.0, "{name} is {value}");
        value as u64
    }
}
