//! The phases of a worker task: it registers with the chief, prepares, trains, and evaluates if the chief
//! requests it. This module must not depend on update rules or on other workers.

mod course;
mod courtesy;
mod filter;
mod input;
mod patience;
mod session;
mod step;
mod trainer;
mod validation;
mod worker;

pub use worker::Worker;
