//! The trait of all transports. Through a transport, a task listens and dials.

use futures_util::future::BoxFuture;

use crate::error::TransportError;
use crate::link::Link;
use crate::listener::Listener;

/// A way to send envelopes between tasks. Addresses have the form `host:port`; their meaning depends on the
/// transport.
pub trait Transport: Send + Sync + 'static {
    /// Starts to listen at an address.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>>;

    /// Returns whether sending a frame may begin before all of its payload is ready. If this is false, a
    /// sender saves no time by sending a [`Promise`](crate::buffer::Promise) of a buffer instead of the
    /// finished buffer.
    fn streams(&self) -> bool;

    /// Opens a link to the task that listens at an address. The side that dials sends the first frame.
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>>;
}
