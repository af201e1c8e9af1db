//! Tests of a shard's state machine through its public functions.

mod appointing;
mod changes;
mod compressed;
pub(crate) mod devices;
mod drafts;
mod on_device;
mod overflow;
pub(crate) mod pushes;
mod rates;
mod rolling_back;
mod saving;
mod sums;
mod workers;
