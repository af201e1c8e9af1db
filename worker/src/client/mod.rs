//! The push/pull client: the values and gradients of all variables, and their transfer from and to the
//! shards. This module must not depend on graphs, data or devices.

mod completion;
mod config;
mod error;
mod exchange;
mod exchange_counters;
mod gradients;
mod in_flight;
mod layout;
mod parameters;
mod promises;
mod residuals;
mod round_trips;
#[cfg(test)]
mod tests;
mod traced_push;
mod value_set;
mod values;

pub use config::ClientConfig;
pub use error::ClientError;
pub use exchange::{Acknowledgement, Exchange};
pub(crate) use exchange_counters::ExchangeCounters;
pub use gradients::Gradients;
pub use in_flight::ExchangeInFlight;
pub use layout::Layout;
pub(crate) use layout::shards_of_stages;
pub use parameters::Parameters;
pub(crate) use parameters::{Front, PushedStep};
pub(crate) use traced_push::TracedPush;
pub(crate) use value_set::{OtherStages, ValueSet};
pub use values::{Values, ValuesError};
