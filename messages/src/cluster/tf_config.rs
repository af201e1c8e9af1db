//! The environment variable `TF_CONFIG`: JSON that TensorFlow reads and Kubeflow's TFJob writes. This module
//! checks only the JSON; [`ClusterSpec`] checks the cluster.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::error::ClusterError;
use super::known_jobs::KnownJobs;
use super::quote::quote;
use super::spec::ClusterSpec;
use crate::id::{JobName, TaskId};

/// The contents of `TF_CONFIG`; each part may be missing.
#[derive(Debug, Default)]
pub(super) struct TfConfig {
    /// The cluster, if the JSON has one.
    pub cluster: Option<ClusterSpec>,
    /// The role of this process's task.
    pub job: Option<JobName>,
    /// The index of this process's task among the tasks of this role.
    pub index: Option<u32>,
}

/// The keys that are read. Other keys, such as TFJob's `environment` and TensorFlow's `rpc_layer`, are
/// ignored.
#[derive(serde::Deserialize)]
struct Text {
    #[serde(default)]
    cluster: Option<Jobs>,
    #[serde(default)]
    task: Option<Value>,
}

/// The jobs in the order of the text. A `Map` would keep only one of two jobs with the same name, so the
/// mistake would go unnoticed.
struct Jobs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Jobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Jobs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from job to addresses")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Jobs, M::Error> {
                let mut jobs = Vec::new();
                while let Some(job) = map.next_entry()? {
                    jobs.push(job);
                }
                Ok(Jobs(jobs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl TfConfig {
    /// Parses the JSON. If the text is empty or its cluster has no jobs, the result has no cluster.
    ///
    /// # Errors
    /// If a part of the JSON, or the cluster, is invalid. The error describes the first fault found.
    pub fn parse(text: &str, known: KnownJobs) -> Result<Self, ClusterError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        const OBJECT: &str = "a JSON object with 'cluster' and 'task'";
        // The derived `Deserialize` would also accept an array for a struct.
        if !text.starts_with('{') {
            return Err(error("the text", OBJECT, quote(text)));
        }
        let text: Text =
            serde_json::from_str(text).map_err(|json| error("the text", OBJECT, quote(&json.to_string())))?;
        let (job, index) = match &text.task {
            None => (None, None),
            Some(Value::Object(task)) => (task_type(task, known)?, task_index(task)?),
            Some(other) => return Err(error("task", "an object with 'type' and 'index'", shown(other))),
        };
        let jobs = text.cluster.map_or_else(Vec::new, |jobs| jobs.0);
        let cluster = if jobs.is_empty() {
            None
        } else {
            let jobs = jobs.into_iter().map(|job| read_job(job, known));
            Some(ClusterSpec::new(jobs.collect::<Result<Vec<_>, _>>()?)?)
        };
        Ok(Self { cluster, job, index })
    }
}

fn error(key: impl Into<String>, expected: &'static str, got: String) -> ClusterError {
    ClusterError::TfConfig { key: key.into(), expected, got }
}

fn shown(value: &Value) -> String {
    quote(&value.to_string())
}

fn read_job(
    (name, addresses): (String, Value),
    known: KnownJobs,
) -> Result<(JobName, Vec<String>), ClusterError> {
    let job = known.parse("TF_CONFIG: cluster", &name)?;
    let in_order: Vec<Value> = match addresses {
        Value::Array(addresses) => addresses,
        Value::Object(sparse) => in_order(job, sparse)?,
        other => return Err(error(format!("cluster.{job}"), "a list of 'host:port'", shown(&other))),
    };
    let text = |(index, address)| match address {
        Value::String(address) => Ok(address),
        other => Err(error(format!("cluster.{job}.{index}"), "a text 'host:port'", shown(&other))),
    };
    Ok((job, in_order.into_iter().enumerate().map(text).collect::<Result<_, _>>()?))
}

/// Returns the addresses of `job`, ordered by index. `sparse` maps the index of each task to the task's
/// address. The indices must be 0, 1, 2 and so on, without gaps.
fn in_order(job: JobName, sparse: Map<String, Value>) -> Result<Vec<Value>, ClusterError> {
    const CONTIGUOUS: &str = "a list, or a map from each index (0, 1, 2 and so on) to its 'host:port'";
    let key = || format!("cluster.{job}");
    let mut tasks = Vec::with_capacity(sparse.len());
    for (index, address) in sparse {
        let number =
            number(&index).ok_or_else(|| error(key(), CONTIGUOUS, format!("index '{}'", quote(&index))))?;
        tasks.push((number, address));
    }
    tasks.sort_by_key(|&(index, _)| index);
    match (0u32..).zip(&tasks).find(|&(expected, &(index, _))| index != expected) {
        Some((expected, (index, _))) => {
            Err(error(key(), CONTIGUOUS, format!("index {index} in place of {expected}")))
        }
        None => Ok(tasks.into_iter().map(|(_, address)| address).collect()),
    }
}

fn task_type(task: &Map<String, Value>, known: KnownJobs) -> Result<Option<JobName>, ClusterError> {
    match task.get("type") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => known.parse("TF_CONFIG: task.type", name).map(Some),
        Some(other) => Err(error("task.type", "the name of a job", shown(other))),
    }
}

fn task_index(task: &Map<String, Value>) -> Result<Option<u32>, ClusterError> {
    let found = match task.get("index") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(index)) => number(&index.to_string()),
        // Some older launchers write the index as a JSON string.
        Some(Value::String(index)) => number(index),
        Some(_) => None,
    };
    found.map(Some).ok_or_else(|| error("task.index", "a whole number from 0", shown(&task["index"])))
}

/// Parses a number that consists of digits only, without sign, decimal point or exponent.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl ClusterSpec {
    /// Returns the text of `TF_CONFIG` for one task of this cluster.
    pub fn to_tf_config(&self, task: TaskId) -> String {
        let cluster: Map<String, Value> =
            self.jobs().map(|(job, addresses)| (job.to_string(), json!(addresses))).collect();
        json!({"cluster": cluster, "task": {"type": task.job, "index": task.index}}).to_string()
    }
}
