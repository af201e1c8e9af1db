//! The settings of an endpoint. This module opens no socket.

use std::time::Duration;

use pushpull_identity::Credentials;

use super::protection::{Given, Protection};
use super::token::Token;
use crate::programs::logging::Log;
use crate::programs::settings::CalledWith;

/// The settings of a process's endpoint: its address, and the data that it shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointConfig {
    /// The address to listen at; `None` for no endpoint. If the port is 0, the system chooses a free port.
    pub address: Option<String>,
    /// The token that a request to save or stop the job must carry. If other hosts can reach the endpoint,
    /// every request must carry it. Without a token, the endpoint takes the one of the join string.
    pub token: Option<Token>,
    /// The credentials of the process; `None` if it has no join string and no certificate.
    pub credentials: Option<Credentials>,
    /// Other hosts may read the endpoint although nothing protects it.
    pub insecure: bool,
    /// Further host names and addresses that requests may name.
    pub hosts: Vec<String>,
    /// The time for which the endpoint keeps answering after its tasks have ended.
    pub linger: Duration,
    /// The flags that `/config` shows.
    pub called_with: CalledWith,
    /// The log that `/log` shows.
    pub log: Log,
}

impl EndpointConfig {
    /// Returns these settings, for a process with these credentials. With `insecure`, other hosts may read
    /// the endpoint although nothing protects it.
    #[must_use]
    pub(crate) fn identified(self, credentials: Option<Credentials>, insecure: bool) -> Self {
        Self { credentials, insecure, ..self }
    }

    /// Returns whether other hosts may reach the process without a proof of who they are.
    pub(super) const fn is_insecure(&self) -> bool {
        self.insecure && self.credentials.is_none()
    }

    /// Returns the token of the endpoint. With a join string, there is always one.
    pub(super) fn any_token(&self) -> Option<Token> {
        let derived = || self.credentials.as_ref().and_then(Credentials::join_string).map(Token::of);
        self.token.clone().or_else(derived)
    }

    /// Returns the protection of the endpoint, where `is_local` says whether it listens at loopback; `None`
    /// if nothing protects it from other hosts.
    pub(super) fn protection(&self, is_local: bool) -> Option<Protection> {
        Protection::of(Given {
            is_local,
            is_identified: self.credentials.is_some(),
            has_token: self.any_token().is_some(),
            is_insecure: self.insecure,
        })
    }
}
