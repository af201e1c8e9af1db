//! The settings of an endpoint. This module opens no socket.

use std::time::Duration;

use super::token::Token;
use crate::programs::logging::Log;
use crate::programs::settings::CalledWith;

/// The settings of a process's endpoint: its address, and the data that it shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointConfig {
    /// The address to listen at; `None` for no endpoint. If the port is 0, the system chooses a free port.
    pub address: Option<String>,
    /// The token that a request to save or stop the job must carry. If it is `None`, all such requests are
    /// refused.
    pub token: Option<Token>,
    /// The time for which the endpoint keeps answering after its tasks have ended.
    pub linger: Duration,
    /// The flags that `/config` shows.
    pub called_with: CalledWith,
    /// The log that `/log` shows.
    pub log: Log,
}
