//! Tests of whole servers, several in this process and connected by TCP: parts on random devices, hostile
//! clients, many clients at once, and ends of clients and tasks in the middle of runs.

mod client;
mod cluster;
mod disconnections;
#[path = "../../../../messages/tests/fixtures/mod.rs"]
mod fixtures;
mod gates;
mod hostile;
mod many_clients;
mod parts;
#[path = "../../../engine/src/tests/random_graph.rs"]
#[allow(dead_code, reason = "the engine's tests use the rest")]
mod random_graph;
mod trial;
mod values;
