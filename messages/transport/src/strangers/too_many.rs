//! The reasons why a connection is closed before its other end has proved who it is.

use super::bounds::{Bounds, FAILURE_EVERY};
use crate::wire::WireError;

/// The reason why a connection is closed before its other end has proved who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    /// The host has too many connections.
    #[error(
        "{} connections of this host have not proved who they are; try again later",
        Bounds::USUAL.host_open_max
    )]
    OfHost,
    /// All hosts together have too many connections, and no host has more than this one.
    #[error(
        "{} connections have not proved who they are, and this is the oldest one of the host with the most",
        Bounds::USUAL.open_max
    )]
    Displaced,
    /// Too many attempts of the host have failed.
    #[error(
        "too many attempts of this host have failed: one more may fail every {} ms; try again later",
        FAILURE_EVERY.as_millis()
    )]
    Failed,
}

impl From<TooMany> for WireError {
    fn from(too_many: TooMany) -> Self {
        Self::TooMany(too_many.to_string())
    }
}
