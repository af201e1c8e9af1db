//! A shard's state machine: its slices, their updates, and the workers that wait for values. It uses no
//! actor, clock or socket.

mod aggregate;
mod answer;
mod blocks;
mod compression;
mod contents;
mod cut;
mod deferred;
mod draft;
mod in_flight;
mod initial;
mod ledger;
mod limits;
mod newest;
mod on_device;
mod optimizer;
mod outcome;
mod pinned;
#[cfg(test)]
mod reference;
mod saves;
mod shared_work;
mod slice;
mod stage;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod threads;
mod timer;
mod update;
mod waiting;

pub use answer::{Answer, Reader};
pub use cut::{Cut, Restored, SliceState};
pub(crate) use draft::{ArrivedDraft, DraftWriter, Plan};
pub(crate) use initial::fill_initial;
pub use limits::ShardLimits;
pub use newest::{Newest, ValuesKind};
pub use optimizer::initial_slots;
pub(crate) use optimizer::{optimizer_step, slots};
pub(crate) use pinned::PinnedVersions;
pub(crate) use stage::Stage;
pub use state::{FileRequest, ShardState};
pub(crate) use state::{Gradients, PlanKey};
pub(crate) use threads::UpdateThreads;
pub use timer::Measure;
