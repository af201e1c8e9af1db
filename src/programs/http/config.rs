//! The settings of an endpoint. This module opens no socket.

use std::net::ToSocketAddrs;
use std::time::Duration;

use anyhow::anyhow;
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
    /// True if the process can have a join string.
    pub can_join: bool,
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
        Self { credentials, can_join: true, insecure, ..self }
    }

    /// Returns these settings, for a process that can have no join string, because it talks to no other task.
    #[must_use]
    pub(crate) fn alone(self, insecure: bool) -> Self {
        Self { credentials: None, can_join: false, insecure, ..self }
    }

    /// Returns the token of the endpoint. With a join string, there is always one.
    pub(super) fn any_token(&self) -> Option<Token> {
        let derived = || self.credentials.as_ref().and_then(Credentials::join_string).map(Token::of);
        self.token.clone().or_else(derived)
    }

    /// Checks the settings before another process listens with them. It has no join string.
    ///
    /// # Errors
    /// Returns an error if other hosts could reach the endpoint, and nothing protects it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(address) = &self.address else { return Ok(()) };
        // The process that listens reports an address that cannot be resolved.
        let Ok(found) = address.to_socket_addrs() else { return Ok(()) };
        let is_local = found.into_iter().all(|address| address.ip().to_canonical().is_loopback());
        self.protected(address, is_local).map(drop)
    }

    /// Returns the protection of the endpoint at `address`, where `is_local` says whether that is loopback.
    ///
    /// # Errors
    /// Returns an error that names the ways on, if nothing protects the endpoint from other hosts.
    pub(super) fn protected(&self, address: &str, is_local: bool) -> anyhow::Result<Protection> {
        let ways = match (&self.credentials, self.can_join) {
            // With a join string, there is a token.
            (Some(_), _) => "a task with --tls-cert needs a token for it (--http-token-file FILE)",
            (None, true) => {
                "give the task the job's join string (--join-file FILE) or a token (--http-token-file FILE), allow it with \
                 --insecure"
            }
            (None, false) => "give it a token (--http-token-file FILE), allow it with --insecure",
        };
        self.protection(is_local).ok_or_else(|| {
            anyhow!(
                "--http-addr {address}: other hosts could read this endpoint: {ways}, or listen at a loopback address such \
                 as 127.0.0.1:0"
            )
        })
    }

    /// Returns the protection of the endpoint, where `is_local` says whether it listens at loopback; `None`
    /// if nothing protects it from other hosts.
    fn protection(&self, is_local: bool) -> Option<Protection> {
        Protection::of(Given {
            is_local,
            is_identified: self.credentials.is_some(),
            has_token: self.any_token().is_some(),
            is_insecure: self.insecure,
        })
    }
}
