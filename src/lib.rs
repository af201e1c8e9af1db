//! pushpull: train a model over many hosts, with variables that live in shards on parameter server tasks.
//!
//! A model is a [`GraphSpec`], put together with a [`GraphBuilder`] and the layers of [`nn`]. [`TrainArgs`] turns it
//! into a job by the flags that every example takes, and runs it: in this process, or as the task of a cluster
//! that the flags or `TF_CONFIG` say it is.

#![forbid(unsafe_code)]

pub mod hooks;
pub mod nn;

mod checkpoint;
mod cli;
mod cluster;
mod embedded;
mod exit;
mod http;
mod local;
mod logging;
mod progress;
#[cfg(doctest)]
mod readme;
mod report;
mod roles;
mod signals;
mod threads;
mod top;

pub use chief::summary::{EventError, EventWriter, SummaryConfig};
pub use chief::{ChiefConfig, ChiefError, JobEnd, JobProgress, JobReport};
pub use chief::{Moment, WorkerReport};
pub use cli::{
    Defaults, TrainArgs, chief_main, evaluator_main, local_main, main, main_with, ps_main, worker_main,
};
pub use embedded::Embedded;
pub use exit::{Failure, Outcome};
pub use hooks::Hooks;
pub use messages::cluster::{ClusterConfig, ClusterFlags, ClusterSpec};
pub use messages::gradient::{GradientSpec, NotFiniteSpec};
pub use messages::graph::{
    BinaryOp, GraphBuilder, GraphError, GraphSpec, LayerId, Op, Padding, ReductionOp, Stride, UnaryOp, Window,
};
pub use messages::id::{GlobalStep, NodeId, VariableId};
pub use messages::input::{
    BabbleSpec, CategorySpec, ColumnSpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, FeatureKind,
    FeatureSpec, FieldSpec, InputSpec, MapSpec, NumberSpec, RepeatSpec, ShardSpec, ShuffleSpec, StageSpec,
    TextSpec, TfRecordSpec, VocabularySpec, WindowsSpec,
};
pub use messages::job::{JobError, JobSpec};
pub use messages::message::{Evaluation, MetricValue};
pub use messages::optimizer::{OptimizerSpec, ScheduleSpec};
pub use messages::placement::{PartitionerSpec, PlacementSpec, StrategySpec};
pub use messages::sync::{LeaveSpec, SyncSpec};
pub use messages::tensor::{DType, Shape, TensorSpec};
pub use messages::variable::{DeviceSpec, InitializerSpec};
pub use ps::{PsConfig, PsError};
pub use report::Report;
pub use worker::input::{Example, TfRecordWriter};
pub use worker::{WorkerConfig, WorkerError};
