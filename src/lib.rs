//! pushpull: trains a model on many hosts, with variables that live in shards on parameter server tasks.

#![doc = include_str!("../docs/src/guide/tutorial.md")]
#![forbid(unsafe_code)]

pub mod data;
pub mod hooks;
pub mod nn;

mod attached;
mod best;
#[cfg(all(doctest, feature = "programs"))]
mod book;
mod cluster;
mod collector;
mod embedded;
mod error;
mod incarnation;
mod job;
mod model;
pub mod prelude;
#[cfg(feature = "programs")]
mod programs;
mod progress;
mod report;
mod server;
mod session;
mod stop;
mod threads;
mod train;
mod trained;

pub use best::Best;
pub use cluster::Cluster;
pub use embedded::Embedded;
pub use error::Error;
pub use hooks::Hooks;
pub use job::Job;
pub use model::{Examples, Model, Predictions, TensorView};
#[cfg(feature = "fuzz")]
pub use programs::fuzz;
#[cfg(feature = "programs")]
pub use programs::{
    Defaults, Failure, Outcome, TrainArgs, chief_main, evaluator_main, evaluator_main_with, local_main, main,
    main_from, main_with, ps_main, server_main, worker_main, worker_main_with,
};
pub use progress::Progress;
pub use pushpull_chief::checkpoint::{CheckpointConfig, MemoryCheckpointConfig};
pub use pushpull_chief::tensorboard::{EventError, EventWriter, SummaryConfig};
pub use pushpull_chief::{ChiefConfig, ChiefError, JobEnd, JobProgress, JobReport};
pub use pushpull_chief::{TrainingSnapshot, WorkerReport};
pub use pushpull_identity::{
    ClientRole, ClientString, ClientStringError, JoinString, TlsFiles, TlsFilesError,
};
pub use pushpull_input::{Example, InputError, TfRecordWriter};
pub use pushpull_messages::cadence::EvalEverySpec;
#[cfg(feature = "programs")]
pub use pushpull_messages::cluster::ClusterFlags;
pub use pushpull_messages::cluster::{ClusterConfig, ClusterSpec};
pub use pushpull_messages::communication::CommunicationSpec;
pub use pushpull_messages::compression::{CompressionSpec, EncodingSpec};
pub use pushpull_messages::device::{OpDeviceError, OpDeviceSpec};
pub use pushpull_messages::distribution::DistributionSpec;
pub use pushpull_messages::gradient::{GradientSpec, NotFiniteSpec};
pub use pushpull_messages::graph::{
    BinaryOp, GraphBuilder, GraphError, GraphSpec, LayerId, NodeSpec, Op, Padding, ReductionOp, Stride,
    UnaryOp, Window,
};
pub use pushpull_messages::id::{GlobalStep, JobName, NodeId, TaskId, VariableId};
pub use pushpull_messages::input::{
    BabbleSpec, CategorySpec, ColumnSpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, FeatureKind,
    FeatureSpec, FieldSpec, InputSpec, ListKind, ListSpec, MapSpec, NumberSpec, RepeatSpec, ShardSpec,
    ShuffleSpec, StageSpec, StreamSpec, TableColumnSpec, TableFieldsSpec, TableSpec, TextSpec, TfRecordSpec,
    VocabularySpec, WindowsSpec,
};
pub use pushpull_messages::job::{JobError, JobSpec};
pub use pushpull_messages::message::{Evaluation, MetricValue};
pub use pushpull_messages::optimizer::{DecaySpec, GroupError, GroupSpec, OptimizerSpec, ScheduleSpec};
pub use pushpull_messages::placement::{PartitionerSpec, PlacementSpec, StrategySpec};
pub use pushpull_messages::sync::{LeaveSpec, SyncSpec};
pub use pushpull_messages::tensor::{DType, Elements, Shape, Tensor, TensorError, TensorSpec};
pub use pushpull_messages::variable::{DeviceSpec, InitializerSpec, VariableSpec};
pub use pushpull_ps::ContainerLimits;
pub use pushpull_ps::{MakeDevice, PsConfig, PsDevice, PsDeviceError, PsError};
pub use pushpull_session::SessionConfig;
pub use pushpull_worker::{
    BestError, BestSpec, DeviceChoice, DeviceList, DeviceListError, Goal, WorkerConfig, WorkerError,
};
pub use report::{Bucket, Report, ShardReport};
pub use server::{Server, ServerOptions};
pub use session::{
    GreedyLoadBalancing, PsOp, PsStrategy, ReplicaDeviceSetter, Session, SessionError, SessionOptions,
    byte_size_load_fn,
};
pub use stop::StopHandle;
pub use trained::Trained;
