//! A shard: the actor that owns slices. The state machine knows neither actor nor clock nor socket.

mod actor;
mod aggregate;
mod initial;
mod ledger;
mod optimizer;
mod slice;
mod state;
#[cfg(test)]
mod tests;
mod update;
mod waiting;
#[cfg(test)]
mod workers;

pub use actor::{SHARD_REQUESTS_MAX, Shard, ShardRequest};
pub use state::{Reader, ShardLimits, ShardState};
pub use waiting::Answer;
