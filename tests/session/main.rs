//! Tests of sessions with real servers on loopback: the listings of the field's tutorials, the examples, and
//! what clients see when tasks are killed, drained or started wrongly.

#[path = "../support/organisation.rs"]
mod organisation;

mod certified;
mod clients;
mod devices;
mod draining;
mod examples;
mod harness;
mod hostile;
mod joining;
mod killing;
mod starting;
mod training;
