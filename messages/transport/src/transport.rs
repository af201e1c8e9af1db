//! What every transport offers: to listen, and to dial. Knows no particular transport.

use futures_util::future::BoxFuture;

use crate::error::TransportError;
use crate::link::Link;
use crate::listener::Listener;

/// A way for envelopes to travel between tasks. Addresses are `host:port`, whatever the transport makes of
/// them.
pub trait Transport: Send + Sync + 'static {
    /// Starts to listen.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>>;

    /// Returns whether a frame may be sent before all of its payload is ready. If not, a promise gains
    /// nothing.
    fn streams(&self) -> bool;

    /// Opens a link. The side that dials sends the first frame.
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>>;
}
