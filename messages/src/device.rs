//! Devices of operations, written `/job:worker/task:1/device:CPU:0`, in full or in part. The devices of
//! variables are written differently: see [`DeviceSpec`](crate::variable::DeviceSpec).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::excerpt::excerpt;
use crate::id::{JobName, TaskId};

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A graphics processor.
    Gpu,
}

/// A device of a task, on which a clone of the graph or a part of it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// The task.
    pub task: TaskId,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The index of the device among the task's devices of this kind.
    pub index: u32,
}

/// The device that a user requests for an operation. Each part that is given restricts the choice:
/// `/device:GPU:0` allows the first GPU of every task, and the empty text allows every device.
///
/// The parts have the order job, replica, task, device. `/cpu:0` and `/gpu:0` are short for `/device:CPU:0`
/// and `/device:GPU:0`, the index `*` allows every index, and the replica is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OpDeviceSpec {
    /// The job of the task.
    pub job: Option<JobName>,
    /// The index of the task in its job.
    pub task: Option<u32>,
    /// The kind of the device, and its index among the devices of this kind. The index is optional.
    pub device: Option<(DeviceKind, Option<u32>)>,
}

/// The error for a text that is not a valid device for an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device '{0}' is not valid for an operation, expected a device of a task, such as '/job:worker/task:0/device:CPU:0', '/job:ps/task:1' or '/gpu:0'"
)]
pub struct OpDeviceError(String);

/// The maximum number of characters of a text that an error quotes.
const QUOTE_CHARS_MAX: usize = 64;

impl OpDeviceSpec {
    /// Returns true if the request allows `device`.
    pub fn allows(&self, device: &Device) -> bool {
        let kind = |(kind, index): (DeviceKind, Option<u32>)| {
            kind == device.kind && index.is_none_or(|index| index == device.index)
        };
        self.job.is_none_or(|job| job == device.task.job)
            && self.task.is_none_or(|task| task == device.task.index)
            && self.device.is_none_or(kind)
    }

    /// Returns true if the request allows every device.
    pub fn is_unrestricted(&self) -> bool {
        *self == Self::default()
    }

    /// Returns this request with the parts that `inner` has in place of its own, as for an operation in a
    /// device scope within another one.
    #[must_use]
    pub fn merge(self, inner: Self) -> Self {
        Self {
            job: inner.job.or(self.job),
            task: inner.task.or(self.task),
            device: inner.device.or(self.device),
        }
    }

    /// Parses a text, or returns `None` if it is invalid.
    fn parse(text: &str) -> Option<Self> {
        let mut spec = Self::default();
        if text.is_empty() {
            return Some(spec);
        }
        let mut last = 0;
        for part in text.strip_prefix('/')?.split('/') {
            let (key, value) = part.split_once(':')?;
            // Each part may occur at most once, and the parts must be in this order.
            let order = match key {
                "job" => {
                    spec.job = Some(value.parse().ok()?);
                    1
                }
                // As in TensorFlow, the replica is written but has no meaning here.
                "replica" => number(value).map(|_| 2)?,
                "task" => {
                    spec.task = Some(number(value)?);
                    3
                }
                "device" => {
                    let (kind, index) =
                        value.split_once(':').map_or((value, None), |(kind, index)| (kind, Some(index)));
                    spec.device = Some((kind_of(kind)?, index_of(index)?));
                    4
                }
                short => {
                    spec.device = Some((kind_of(short)?, index_of(Some(value))?));
                    4
                }
            };
            if order <= last {
                return None;
            }
            last = order;
        }
        Some(spec)
    }
}

/// Parses a number of digits only.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Parses the kind of a device, in upper or lower case.
fn kind_of(text: &str) -> Option<DeviceKind> {
    [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu)]
        .into_iter()
        .find_map(|(name, kind)| text.eq_ignore_ascii_case(name).then_some(kind))
}

/// Parses the index of a device. The inner value is `None` for every index. Returns `None` if the index is
/// invalid.
fn index_of(text: Option<&str>) -> Option<Option<u32>> {
    match text {
        None | Some("*") => Some(None),
        Some(text) => number(text).map(Some),
    }
}

impl FromStr for OpDeviceSpec {
    type Err = OpDeviceError;

    fn from_str(text: &str) -> Result<Self, OpDeviceError> {
        Self::parse(text).ok_or_else(|| OpDeviceError(excerpt(text, QUOTE_CHARS_MAX)))
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "CPU",
            Self::Gpu => "GPU",
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/job:{}/task:{}/device:{}:{}", self.task.job, self.task.index, self.kind, self.index)
    }
}

impl fmt::Display for OpDeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match self.device {
            None => Ok(()),
            Some((kind, None)) => write!(f, "/device:{kind}"),
            Some((kind, Some(index))) => write!(f, "/device:{kind}:{index}"),
        }
    }
}

impl TryFrom<String> for OpDeviceSpec {
    type Error = OpDeviceError;

    fn try_from(text: String) -> Result<Self, OpDeviceError> {
        text.parse()
    }
}

impl From<OpDeviceSpec> for String {
    fn from(device: OpDeviceSpec) -> Self {
        device.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed_in_full_and_in_part() {
        let device = Device { task: TaskId::worker(1), kind: DeviceKind::Cpu, index: 2 };
        assert_eq!(device.to_string(), "/job:worker/task:1/device:CPU:2");
        for (text, allowed) in [
            ("/job:worker/task:1/device:CPU:2", true),
            ("/job:worker/task:1", true),
            ("/device:cpu:2", true),
            ("/device:CPU", true),
            ("/job:worker", true),
            ("/device:CPU:0", false),
            ("/device:GPU:2", false),
            ("/job:worker/task:0/device:CPU:2", false),
        ] {
            let spec: OpDeviceSpec = text.parse().unwrap();
            assert_eq!(spec.allows(&device), allowed, "{text}");
            assert_eq!(spec.to_string().parse::<OpDeviceSpec>().unwrap(), spec, "{text}");
        }
        for text in [
            "/",
            "cpu:0",
            "/cpu",
            "/job:/task:0",
            "/job:Worker",
            "/task:x",
            "/task:+1",
            "/task:*",
            "/replica:x",
            "/device:TPU:0",
            "/device:CPU:-1",
            "/device:CPU:",
            "/device:CPU:0/task:1",
            "/task:1/job:ps",
            "/task:1/replica:0",
            "/cpu:0/gpu:0",
            "/task:1/task:2",
            "/job:worker/",
        ] {
            let error = text.parse::<OpDeviceSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
        let error = "/x\n".parse::<OpDeviceSpec>().unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn devices_of_any_job_have_one_canonical_text() {
        for (text, canonical) in [
            ("", ""),
            ("/job:ps/task:0", "/job:ps/task:0"),
            ("/job:local/task:1/device:CPU:0", "/job:local/task:1/device:CPU:0"),
            ("/job:worker/replica:3/task:1/cpu:0", "/job:worker/task:1/device:CPU:0"),
            ("/job:master", "/job:chief"),
            ("/replica:0", ""),
            ("/cpu:0", "/device:CPU:0"),
            ("/GPU:1", "/device:GPU:1"),
            ("/gpu:*", "/device:GPU"),
            ("/device:gpu:*", "/device:GPU"),
        ] {
            let spec: OpDeviceSpec = text.parse().unwrap();
            assert_eq!(
                (spec.to_string().as_str(), spec.is_unrestricted()),
                (canonical, canonical.is_empty())
            );
            assert_eq!(canonical.parse::<OpDeviceSpec>().unwrap(), spec);
        }
        let device = Device { task: TaskId::ps(1), kind: DeviceKind::Cpu, index: 0 };
        assert!("/job:ps".parse::<OpDeviceSpec>().unwrap().allows(&device));
        assert!(!"/job:worker/task:1".parse::<OpDeviceSpec>().unwrap().allows(&device));
    }

    #[test]
    fn inner_parts_replace_outer_parts() {
        let merged = |outer: &str, inner: &str| {
            outer.parse::<OpDeviceSpec>().unwrap().merge(inner.parse().unwrap()).to_string()
        };
        assert_eq!(merged("/job:ps/task:1", "/cpu:0"), "/job:ps/task:1/device:CPU:0");
        assert_eq!(merged("/job:ps/task:1/gpu:0", "/job:worker/task:0"), "/job:worker/task:0/device:GPU:0");
        assert_eq!(merged("/gpu:1", "/device:GPU"), "/device:GPU");
        assert_eq!((merged("/job:ps", ""), merged("", "/job:ps")), ("/job:ps".into(), "/job:ps".into()));
    }
}
