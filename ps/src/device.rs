//! The device on which the shards of a task keep the state of their optimizers: how people write it, and how
//! a shard opens it. This module must not depend on shards.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use pushpull_cuda::{Card, Driver, DriverError};

/// Opens a device.
type Open = dyn Fn() -> Result<Box<dyn Driver + Send>, DriverError> + Send + Sync;

/// A function that opens a device. Each shard calls it whenever its variables are created, and closes the
/// device that it had before.
#[derive(Clone)]
pub struct MakeDevice(Arc<Open>);

impl MakeDevice {
    /// Wraps a function that opens a device.
    pub fn new(
        open: impl Fn() -> Result<Box<dyn Driver + Send>, DriverError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }

    /// Returns the function that opens the card with this index.
    pub fn card(index: u32) -> Self {
        Self::new(move || Ok(Box::new(Card::open(index as usize)?)))
    }

    /// Opens the device.
    ///
    /// # Errors
    /// If the device cannot be used.
    pub(crate) fn open(&self) -> Result<Box<dyn Driver + Send>, DriverError> {
        (self.0)()
    }
}

impl fmt::Debug for MakeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MakeDevice")
    }
}

/// Where a ps task applies updates, as people choose it: `cpu` or `cuda:0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PsDevice {
    /// The host's processor.
    #[default]
    Cpu,
    /// The card with this index.
    Card(u32),
}

/// The error for a text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' names no device of a ps task, expected 'cpu', or a CUDA device such as 'cuda:0'")]
pub struct PsDeviceError(String);

impl PsDevice {
    /// Returns the function that opens the device, after looking for the device; `None` for the processor.
    ///
    /// # Errors
    /// If the host lacks the card, or cannot use cards at all.
    pub fn resolve(self) -> Result<Option<MakeDevice>, DriverError> {
        let Self::Card(index) = self else { return Ok(None) };
        let found = pushpull_cuda::cards()?.len();
        if index as usize >= found {
            return Err(DriverError::Unavailable(format!(
                "there is no device {self}: the NVIDIA driver of this host finds {found} card(s)"
            )));
        }
        Ok(Some(MakeDevice::card(index)))
    }
}

impl FromStr for PsDevice {
    type Err = PsDeviceError;

    fn from_str(text: &str) -> Result<Self, PsDeviceError> {
        let error = || PsDeviceError(text.chars().take(64).collect());
        match text.split_once(':') {
            None if text.eq_ignore_ascii_case("cpu") => Ok(Self::Cpu),
            Some((kind, index)) if ["cuda", "gpu"].iter().any(|name| kind.eq_ignore_ascii_case(name)) => {
                index.parse().map(Self::Card).map_err(|_| error())
            }
            _ => Err(error()),
        }
    }
}

impl fmt::Display for PsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Card(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_the_processor_or_one_card() {
        for (text, written) in [("cpu", "cpu"), ("CPU", "cpu"), ("cuda:3", "cuda:3"), ("GPU:0", "cuda:0")] {
            assert_eq!(text.parse::<PsDevice>().unwrap().to_string(), written, "{text}");
        }
        for text in ["", "cuda", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "tpu:0", "cuda:0,cuda:1", "all", "1"]
        {
            let error = text.parse::<PsDevice>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}'")) && error.contains("'cuda:0'"), "{error}");
        }
    }

    #[test]
    fn the_processor_is_no_device_to_open() {
        assert!(PsDevice::Cpu.resolve().unwrap().is_none());
    }
}
