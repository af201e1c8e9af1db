//! Routes: the ways on which gradients travel to shards over other workers. A worker adds the gradients of
//! the workers before it to its own, pushes the sum, and passes the reply back. This module must not depend
//! on graphs, devices or the training loop.

mod parent;
mod relay;
mod route;
mod service;
mod sum;
#[cfg(test)]
mod tests;

pub(crate) use route::RouteSpec;
pub(crate) use service::{Routes, RoutesStart};
