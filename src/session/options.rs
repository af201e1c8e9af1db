//! The options of a session.

use std::time::Duration;

use pushpull_identity::{ClientString, TlsFiles};

/// The options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The container of the variables. Sessions with containers of the same name share variables. The default
    /// is the empty name.
    pub container: String,
    /// Whether an operation that requests a device which its task does not have, such as a GPU, runs on the
    /// task's first CPU. Otherwise, the graph is refused when it is opened.
    pub soft_placement: bool,
    /// Whether to log the device of each node when a graph is opened, at the level info.
    pub log_placement: bool,
    /// How long to wait for the server.
    pub connect_timeout: Duration,
    /// The client string, which servers with a join string demand. `pushpull join client` prints one. `None`
    /// for the one in the environment variable `PUSHPULL_CLIENT`, if it is set.
    pub client: Option<ClientString>,
    /// The files of a certificate that names a client, such as `pushpull://JOB/client/run`, for servers with
    /// certificates that were made elsewhere. `None` for those in the environment variables
    /// `PUSHPULL_TLS_CA`, `PUSHPULL_TLS_CERT` and `PUSHPULL_TLS_KEY`, if they are set.
    pub certificate: Option<TlsFiles>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            container: String::new(),
            soft_placement: false,
            log_placement: false,
            connect_timeout: Duration::from_secs(10),
            client: None,
            certificate: None,
        }
    }
}
