//! Tests of a shard's state machine through its public functions.

mod appointing;
mod changes;
mod pushes;
mod rates;
mod saving;
mod workers;
