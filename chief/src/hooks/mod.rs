//! Hooks that are ready to use. Regular checkpoints need no hook: the saver makes them according to its
//! settings.

mod cadence;
mod early_stopping;
mod epoch_table;
mod final_operation;
mod latest;
mod log_every;
mod loss_sum;
#[cfg(feature = "otlp")]
mod otel_span;
#[cfg(feature = "otlp")]
mod otlp;
mod plateau;
mod reduce_on_plateau;
mod spool;
mod step_counter;
mod stop_at_step;
mod stop_on_nan;
mod summary_every;
mod trace_event;
mod trace_file;

pub use early_stopping::EarlyStopping;
pub(crate) use epoch_table::EpochTable;
pub use final_operation::FinalOperation;
pub use log_every::LogEvery;
#[cfg(feature = "otlp")]
pub use otlp::{Otlp, OtlpError};
pub use plateau::Better;
pub use reduce_on_plateau::{ReduceOnPlateau, TRAIN_LOSS, TRAIN_LOSS_UPDATES};
pub use step_counter::StepCounter;
pub use stop_at_step::StopAtStep;
pub use stop_on_nan::StopOnNan;
pub use summary_every::SummaryEvery;
pub use trace_file::TraceFile;
