//! The devices of a worker, as people write them: `2`, `cuda:0,cuda:1`, `cuda:0,cpu:0` or `all`. This module
//! must not depend on replicas.

use std::fmt;
use std::str::FromStr;

use pushpull_messages::device::{Device, DeviceKind};
use pushpull_messages::id::TaskId;

use super::error::ReplicaError;

/// The maximum number of devices of one worker.
pub const DEVICES_MAX: usize = 64;

/// The devices of a worker: the kind of each, and its index among those of its kind. It has at least one
/// device, at most [`DEVICES_MAX`], and none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceList(Vec<(DeviceKind, u32)>);

/// What people choose: some devices, or all cards of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// All cards of the host that can run CUDA kernels.
    AllCards,
    /// These devices.
    These(DeviceList),
}

/// The error for a text that does not name devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' does not name devices, expected a number of virtual CPUs from 1 to {DEVICES_MAX}, 'all' for all CUDA devices, \
     or a list without repetition, such as 'cuda:0,cuda:1' or 'cuda:0,cpu:0'"
)]
pub struct DeviceListError(String);

impl DeviceList {
    /// Returns this number of virtual devices on the host's processor.
    ///
    /// # Panics
    /// If the number is 0 or larger than [`DEVICES_MAX`].
    pub fn cpus(count: usize) -> Self {
        assert!((1..=DEVICES_MAX).contains(&count), "{count} devices, expected 1 to {DEVICES_MAX}");
        Self((0..count as u32).map(|index| (DeviceKind::Cpu, index)).collect())
    }

    /// Returns the number of devices.
    #[expect(clippy::len_without_is_empty, reason = "a list is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the index of the first device if it is a card.
    pub fn first_card(&self) -> Option<u32> {
        let (kind, index) = self.0[0];
        (kind == DeviceKind::Gpu).then_some(index)
    }

    /// Returns the devices of a task.
    pub(crate) fn of(&self, task: TaskId) -> impl Iterator<Item = Device> + '_ {
        self.0.iter().map(move |&(kind, index)| Device { task, kind, index })
    }

    /// Returns the number of virtual devices on the processor.
    pub(crate) fn cpu_count(&self) -> usize {
        self.0.len() - self.cards().count()
    }

    fn cards(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().filter(|(kind, _)| *kind == DeviceKind::Gpu).map(|&(_, index)| index)
    }
}

impl DeviceChoice {
    /// Returns the chosen devices, after looking for the cards among them.
    ///
    /// # Errors
    /// If the host lacks one of the cards, or cannot use cards at all.
    pub fn resolve(self) -> Result<DeviceList, ReplicaError> {
        match self {
            Self::AllCards => {
                let found = pushpull_cuda::cards()?.len().clamp(1, DEVICES_MAX);
                Ok(DeviceList((0..found as u32).map(|index| (DeviceKind::Gpu, index)).collect()))
            }
            Self::These(list) => {
                if let Some(highest) = list.cards().max() {
                    let found = pushpull_cuda::cards()?.len();
                    if highest as usize >= found {
                        return Err(ReplicaError::MissingCard { index: highest, found });
                    }
                }
                Ok(list)
            }
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = DeviceListError;

    fn from_str(text: &str) -> Result<Self, DeviceListError> {
        let error = || DeviceListError(text.chars().take(64).collect());
        if text == "all" {
            return Ok(Self::AllCards);
        }
        if let Ok(count) = text.parse::<usize>() {
            return match count {
                1..=DEVICES_MAX => Ok(Self::These(DeviceList::cpus(count))),
                _ => Err(error()),
            };
        }
        let mut devices = Vec::new();
        for device in text.split(',') {
            let (kind, index) = device.split_once(':').ok_or_else(error)?;
            let kind = match kind {
                kind if kind.eq_ignore_ascii_case("cpu") => DeviceKind::Cpu,
                kind if ["cuda", "gpu"].iter().any(|name| kind.eq_ignore_ascii_case(name)) => DeviceKind::Gpu,
                _ => return Err(error()),
            };
            let device = (kind, index.parse().map_err(|_| error())?);
            if devices.contains(&device) || devices.len() == DEVICES_MAX {
                return Err(error());
            }
            devices.push(device);
        }
        Ok(Self::These(DeviceList(devices)))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllCards => f.write_str("all"),
            Self::These(list) => list.fmt(f),
        }
    }
}

impl fmt::Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |&(kind, index): &(DeviceKind, u32)| match kind {
            DeviceKind::Cpu => format!("cpu:{index}"),
            DeviceKind::Gpu => format!("cuda:{index}"),
        };
        let only_cpus = self.0.iter().enumerate().all(|(at, device)| *device == (DeviceKind::Cpu, at as u32));
        match only_cpus {
            true => write!(f, "{}", self.len()),
            false => f.write_str(&self.0.iter().map(name).collect::<Vec<_>>().join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_written_as_a_number_a_list_or_all() {
        for (text, written) in [
            ("1", "1"),
            ("3", "3"),
            ("cpu:0,cpu:1", "2"),
            ("cuda:0", "cuda:0"),
            ("GPU:1,cuda:0,cpu:0", "cuda:1,cuda:0,cpu:0"),
            ("cpu:1", "cpu:1"),
            ("all", "all"),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), written, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_by_name() {
        for text in ["", "0", "65", "cuda", "cuda:", "cuda:x", "tpu:0", "cuda:0,", "cuda:0,gpu:0", "-1"] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}'")) && error.contains("cuda:0,cuda:1"), "{error}");
        }
    }

    #[test]
    fn a_list_names_the_devices_of_a_task() {
        let DeviceChoice::These(list) = "cuda:1,cpu:0".parse().unwrap() else { panic!("a list") };
        let names: Vec<String> = list.of(TaskId::worker(2)).map(|device| device.to_string()).collect();
        assert_eq!(names, ["/job:worker/task:2/device:GPU:1", "/job:worker/task:2/device:CPU:0"]);
    }
}
