//! A connection whose ends know each other.

use tokio_rustls::TlsStream;

use crate::proven::Proven;

/// A connection whose other end has proved who it is.
#[derive(Debug)]
pub struct Secured<S> {
    /// The encrypted stream. What is written must be flushed.
    pub stream: TlsStream<S>,
    /// Who the other end is.
    pub proven: Proven,
}
