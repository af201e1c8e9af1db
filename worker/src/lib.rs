//! The worker and evaluator tasks, which compute gradients and evaluations. Only this crate, with its
//! engine, runs graphs and uses devices. It must not depend on update rules, and on other replicas
//! only to pass their gradients on. It must not write the checkpoints of a job.

#![forbid(unsafe_code)]

mod blocking;
mod chief_link;
mod client;
mod config;
mod devices;
mod error;
mod evaluation;
mod evaluator;
mod fetches;
pub mod hooks;
mod lease;
mod metric_totals;
mod predictor;
mod preparation;
mod routes;
mod stages;
mod telemetry;
mod threads;
mod training;

pub use pushpull_cuda::Precision;

pub use client::{
    Acknowledgement, ClientConfig, ClientError, Exchange, ExchangeInFlight, Gradients, Layout, Parameters,
    Values, ValuesError,
};
pub use config::{GivesWay, THREADS_MAX, WorkerConfig};
pub use devices::{
    Complete, Compute, CudaReplica, DEVICES_MAX, DeviceChoice, DeviceList, DeviceListError, GraphReplica,
    MakeReplica, Replica, ReplicaConfig, ReplicaError, engine_replicas,
};
pub use error::WorkerError;
pub use evaluation::EvaluationTotals;
pub use evaluator::{BestError, BestSpec, Evaluator, EvaluatorConfig, EvaluatorError, EvaluatorView, Goal};
pub use fetches::{FETCH_BYTES_MAX, FETCH_NAMES_MAX, FetchConfig, FetchError, FetchedTensor};
pub use hooks::{
    EvaluationInfo, Fetched, GradientMut, Hook, HookError, MakeHook, OnGradients, Start, StepContext,
    StepGradients, StepInfo,
};
pub use predictor::Predictor;
pub use stages::{BeforePass, StageError, StageErrorKind, StagePass};
pub use telemetry::{Plots, WorkerView};
pub use training::Worker;
