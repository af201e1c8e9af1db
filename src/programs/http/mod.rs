//! The HTTP endpoint at which people, Prometheus and `pushpull top` observe a process. It runs on threads of
//! its own. It requests snapshots from the tasks at most a few times a second, and serves them to all
//! clients. This module must not depend on synchronisation policies.

mod about;
mod access;
mod actors;
mod answers;
mod attempts;
mod body;
mod config;
mod connections;
mod control;
mod cookie;
mod endpoint;
mod events;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod health;
mod host;
mod login;
mod metrics;
mod origin;
mod page;
mod protection;
mod refusals;
mod rendered;
mod routes;
#[cfg(any(test, feature = "fuzz"))]
mod sample;
mod server;
mod sessions;
mod socket;
mod targets;
#[cfg(test)]
mod tests;
mod token;
mod views;

pub(crate) use about::About;
pub(crate) use config::EndpointConfig;
pub(crate) use endpoint::Endpoint;
pub(crate) use token::{TOKEN_ENV, Token};
