//! What is recorded of a step, and the work of a device in a traced step. This module must not depend on
//! spans.

use std::borrow::Cow;
use std::time::Instant;

use pushpull_cuda::{Stream, Worked};
use pushpull_engine::Groups;

/// What is recorded of a step in addition to its loss and its gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    /// Whether the step is traced, so that the work of each device and the times of the push are recorded.
    pub traced: bool,
    /// Whether the time of every operation is recorded, too.
    pub ops: bool,
    /// The groups of tensors that the step fetches.
    pub groups: Groups,
}

/// A piece of work that a device has done: a part of a step, or an operation within it.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub device: usize,
    /// The stream of the device that has done it, which works beside the others; `None` for what a device
    /// does on its own thread.
    pub stream: Option<Stream>,
    pub name: Cow<'static, str>,
    pub began: Instant,
    pub ended: Instant,
}

impl Work {
    /// Returns the work of a stream.
    pub fn of_stream(device: usize, Worked { stream, began, ended }: Worked) -> Self {
        let name = match stream {
            Stream::Compute => "compute",
            Stream::Upload => "copy to the device",
            Stream::Download => "copy from the device",
        };
        Self { device, stream: Some(stream), name: name.into(), began, ended }
    }

    /// Returns the name of the row of a timeline that shows this work.
    pub fn lane(&self) -> String {
        match self.stream {
            None => format!("device/{}", self.device),
            Some(Stream::Compute) => format!("device/{} kernels", self.device),
            Some(Stream::Upload) => format!("device/{} in", self.device),
            Some(Stream::Download) => format!("device/{} out", self.device),
        }
    }
}
