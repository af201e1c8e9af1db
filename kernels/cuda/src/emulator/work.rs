//! Requests that wait in a queue until they are carried out.

use std::ops::Range;

use crate::driver::{Argument, Grid, Place};
use crate::signature::Parameter;

/// Bytes of a memory that a request reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    pub memory: u64,
    pub bytes: Range<u64>,
    pub written: bool,
}

/// A launch.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub kernel: String,
    /// The index of the source that had the kernel when the launch was requested.
    pub module: usize,
    pub parameters: Vec<Parameter>,
    pub grid: Grid,
    pub arguments: Vec<Argument>,
    /// The bytes that the launch touches; `None` if they were not declared.
    pub touched: Option<Vec<Touch>>,
}

/// A request that was captured.
#[derive(Clone, Debug)]
pub(super) enum Captured {
    Call(Call),
    /// The event with this number.
    Event(u64),
}

/// A request in the queue of a stream.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Upload {
        to: Place,
        bytes: Vec<u8>,
    },
    Copy {
        from: Place,
        to: Place,
        bytes: u64,
    },
    Download {
        from: Place,
        transfer: u64,
        bytes: u64,
    },
    Call(Call),
    /// The event with this number.
    Record(u64),
    /// A wait for the event with this number.
    Wait(u64),
}
