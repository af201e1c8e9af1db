//! Devices of operations, written `/job:worker/task:1/device:CPU:0`, in full or in part. The devices of
//! variables are written differently: see [`DeviceSpec`](crate::variable::DeviceSpec).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{JobName, TaskId};

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A graphics processor.
    Gpu,
}

/// A device of a worker, on which a clone of the graph runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// The worker task.
    pub task: TaskId,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The index of the device among the worker's devices of this kind.
    pub index: u32,
}

/// The device that a user requests for an operation. Each part that is given restricts the choice:
/// `/device:GPU:0` allows the first GPU of every worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OpDeviceSpec {
    /// The index of the worker.
    pub task: Option<u32>,
    /// The kind of the device, and its index among the devices of this kind. The index is optional.
    pub device: Option<(DeviceKind, Option<u32>)>,
}

/// The error for a text that is not a valid device for an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device '{0}' is not valid for an operation, expected a device of a worker, such as '/job:worker/task:0/device:CPU:0' or '/device:GPU:1'"
)]
pub struct OpDeviceError(String);

impl OpDeviceSpec {
    /// Returns true if the request allows `device`.
    pub fn allows(&self, device: &Device) -> bool {
        let kind = |(kind, index): (DeviceKind, Option<u32>)| {
            kind == device.kind && index.is_none_or(|index| index == device.index)
        };
        self.task.is_none_or(|task| task == device.task.index) && self.device.is_none_or(kind)
    }
}

impl FromStr for OpDeviceSpec {
    type Err = OpDeviceError;

    fn from_str(text: &str) -> Result<Self, OpDeviceError> {
        let error = || OpDeviceError(text.chars().take(64).collect());
        let number = |text: &str| text.parse::<u32>().map_err(|_| error());
        let mut spec = Self { task: None, device: None };
        let mut last = 0;
        for part in text.strip_prefix('/').ok_or_else(error)?.split('/') {
            let (key, value) = part.split_once(':').ok_or_else(error)?;
            // Each part may occur at most once, and the parts must be in this order.
            let order = match key {
                "job" if value == JobName::Worker.as_str() => 1,
                "task" => {
                    spec.task = Some(number(value)?);
                    2
                }
                "device" => {
                    let (kind, index) =
                        value.split_once(':').map_or((value, None), |(kind, index)| (kind, Some(index)));
                    let kind = match kind {
                        kind if kind.eq_ignore_ascii_case("cpu") => DeviceKind::Cpu,
                        kind if kind.eq_ignore_ascii_case("gpu") => DeviceKind::Gpu,
                        _ => return Err(error()),
                    };
                    spec.device = Some((kind, index.map(number).transpose()?));
                    3
                }
                _ => return Err(error()),
            };
            if order <= last {
                return Err(error());
            }
            last = order;
        }
        Ok(spec)
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
        write!(f, "/job:{}", JobName::Worker)?;
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
            "",
            "/",
            "cpu:0",
            "/cpu:0",
            "/job:ps/task:0",
            "/task:x",
            "/device:TPU:0",
            "/device:CPU:-1",
            "/device:CPU:0/task:1",
            "/task:1/task:2",
            "/job:worker/",
        ] {
            assert!(text.parse::<OpDeviceSpec>().is_err(), "{text} was accepted");
        }
    }
}
