//! The bounds of a port for connections that have not proved who they are.

use std::time::Duration;

/// The time after which one more attempt of a host may fail.
pub(super) const FAILURE_EVERY: Duration = Duration::from_millis(125);

/// The bounds of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The largest number of connections of one host that have not proved who they are.
    pub host_open_max: u32,
    /// The largest number of such connections of all hosts.
    pub open_max: usize,
    /// The number of attempts of one host that may fail in a row.
    pub host_failures_max: u32,
    /// The largest number of hosts that are remembered, more than `open_max`.
    pub hosts_max: usize,
}

impl Bounds {
    pub(super) const USUAL: Self =
        Self { host_open_max: 64, open_max: 1024, host_failures_max: 64, hosts_max: 2048 };
}
