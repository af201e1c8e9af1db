//! Tests of a shard's state machine through its public functions.

mod pushes;
mod saving;
mod workers;
