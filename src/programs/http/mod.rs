//! The HTTP endpoint at which people, Prometheus and `pushpull top` observe a process. It runs on threads of
//! its own. It requests snapshots from the tasks at most a few times a second, and serves them to all
//! clients. This module must not depend on synchronisation policies.

mod about;
mod actors;
mod answers;
mod body;
mod config;
mod connections;
mod control;
mod endpoint;
mod events;
mod health;
mod host;
mod metrics;
mod page;
mod rendered;
mod routes;
mod server;
mod targets;
#[cfg(test)]
mod tests;
mod token;
mod views;

pub(crate) use about::About;
pub(crate) use config::EndpointConfig;
pub(crate) use endpoint::Endpoint;
pub(crate) use token::{TOKEN_ENV, Token};
