//! pushpull: train a model over many hosts, with variables that live in shards on parameter server tasks.
//!
//! A model is a [`GraphSpec`], put together with a [`GraphBuilder`] and the layers of [`nn`]. [`TrainArgs`] turns it
//! into a job by the flags that every example takes, and runs it: in this process, or as the task of a cluster
//! that the flags or `TF_CONFIG` say it is.

#![forbid(unsafe_code)]

pub mod hooks;
pub mod nn;

#[cfg(doctest)]
mod book;
mod checkpoint;
mod cli;
mod cluster;
mod embedded;
mod exit;
mod http;
mod local;
mod logging;
mod progress;
mod report;
mod roles;
mod signals;
mod threads;
mod top;

pub use cli::{
    Defaults, TrainArgs, chief_main, evaluator_main, local_main, main, main_with, ps_main, worker_main,
};
pub use embedded::Embedded;
pub use exit::{Failure, Outcome};
pub use hooks::Hooks;
pub use pushpull_chief::summary::{EventError, EventWriter, SummaryConfig};
pub use pushpull_chief::{ChiefConfig, ChiefError, JobEnd, JobProgress, JobReport};
pub use pushpull_chief::{Moment, WorkerReport};
pub use pushpull_input::{Example, TfRecordWriter};
pub use pushpull_messages::cluster::{ClusterConfig, ClusterFlags, ClusterSpec};
pub use pushpull_messages::gradient::{GradientSpec, NotFiniteSpec};
pub use pushpull_messages::graph::{
    BinaryOp, GraphBuilder, GraphError, GraphSpec, LayerId, Op, Padding, ReductionOp, Stride, UnaryOp, Window,
};
pub use pushpull_messages::id::{GlobalStep, NodeId, VariableId};
pub use pushpull_messages::input::{
    BabbleSpec, CategorySpec, ColumnSpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, FeatureKind,
    FeatureSpec, FieldSpec, InputSpec, MapSpec, NumberSpec, RepeatSpec, ShardSpec, ShuffleSpec, StageSpec,
    TextSpec, TfRecordSpec, VocabularySpec, WindowsSpec,
};
pub use pushpull_messages::job::{JobError, JobSpec};
pub use pushpull_messages::message::{Evaluation, MetricValue};
pub use pushpull_messages::optimizer::{OptimizerSpec, ScheduleSpec};
pub use pushpull_messages::placement::{PartitionerSpec, PlacementSpec, StrategySpec};
pub use pushpull_messages::sync::{LeaveSpec, SyncSpec};
pub use pushpull_messages::tensor::{DType, Shape, TensorSpec};
pub use pushpull_messages::variable::{DeviceSpec, InitializerSpec};
pub use pushpull_ps::{PsConfig, PsError};
pub use pushpull_worker::{WorkerConfig, WorkerError};
pub use report::Report;
