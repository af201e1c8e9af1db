//! A shard: the actor that owns slices. The state machine knows neither actor nor clock nor socket.

mod actor;
mod aggregate;
mod cut;
mod held;
mod initial;
mod ledger;
mod optimizer;
mod saves;
#[cfg(test)]
mod saving;
mod slice;
mod state;
#[cfg(test)]
mod tests;
mod ticket;
mod update;
mod updates;
mod waiting;
#[cfg(test)]
mod workers;

pub(crate) use actor::{Shard, ShardRequest};
pub use cut::{Cut, Restored, SliceState};
pub use optimizer::initial_slots;
pub(crate) use optimizer::slot_names;
pub(crate) use state::Stage;
pub use state::{Order, Reader, ShardLimits, ShardState};
pub use updates::Measure;
pub use waiting::Answer;
