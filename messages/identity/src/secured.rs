//! A connection whose ends know each other.

use pushpull_messages::id::TaskId;
use tokio_rustls::TlsStream;

/// A connection whose other end has proved which tasks it runs.
#[derive(Debug)]
pub struct Secured<S> {
    /// The encrypted stream. What is written must be flushed.
    pub stream: TlsStream<S>,
    /// The tasks that the certificate of the other end names.
    pub tasks: Vec<TaskId>,
}
