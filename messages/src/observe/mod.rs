//! Snapshots of actors and tasks. Tests, HTTP endpoints and status displays all use the same snapshots.

mod actor;
mod buckets;
mod chief;
mod clock;
mod evaluator;
mod meter;
mod ps;
mod push_times;
mod session;
mod task;
mod time_source;
mod times;
mod trace;
mod wall_clock;
mod worker;

pub use actor::ActorSnapshot;
pub use buckets::Buckets;
pub use chief::{
    Checkpoints, ChiefSnapshot, CurvePoint, Finding, FindingKind, JobPhase, JobSummary, PlacementRow,
    ShardRow, ShardState, TaskRow, WorkerRow, WorkerState,
};
pub use clock::{Clock, Micros};
pub use evaluator::EvaluatorSnapshot;
pub use meter::{Handling, Meter, Queued};
pub use ps::{PsSnapshot, ServerSnapshot, Traffic};
pub use push_times::PushTimes;
pub use session::SessionSnapshot;
pub use task::{Observed, RoleSnapshot, TaskSnapshot, TaskState};
#[cfg(feature = "virtual-time")]
pub use time_source::{SimulatedTime, simulate_time};
pub use time_source::{now, since, unix_time};
pub use times::{SharedTimes, TimeHistogram};
pub use trace::{LANE_BYTES_MAX, SPANS_MAX, SpanSpec, TraceSpec};
pub use wall_clock::WallClock;
pub use worker::{Phases, RoundTrip, VerdictCounters, WorkerSnapshot};
