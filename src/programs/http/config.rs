//! The settings of an endpoint. Knows no socket.

use std::time::Duration;

use super::token::Token;
use crate::programs::logging::Log;
use crate::programs::settings::CalledWith;

/// Where a process can be observed, and what it shows of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointConfig {
    /// The address to listen at; without one there is no endpoint. With port 0 the system chooses a free
    /// port.
    pub address: Option<String>,
    /// The token that lets a person have the job save or stop; without one no request may.
    pub token: Option<Token>,
    /// How long the endpoint keeps answering when its tasks have ended.
    pub linger: Duration,
    /// The flags that `/config` shows.
    pub called_with: CalledWith,
    /// The log that `/log` shows.
    pub log: Log,
}
