//! The list of targets.

use crate::target::Target;
use crate::{
    authority, chief, cluster, data, evaluation, frame, graph, http, job, join, manifest, memory_files,
    message, pem, record, session, shard, tensors, tls,
};

impl Target {
    /// All targets.
    pub const ALL: &'static [Self] = &[
        frame::TARGET,
        message::TARGET,
        join::TARGET,
        authority::TARGET,
        cluster::TARGET,
        job::TARGET,
        manifest::TARGET,
        evaluation::TARGET,
        record::TARGET,
        tensors::TARGET,
        memory_files::TARGET,
        data::IDX,
        data::CIFAR10,
        data::CSV,
        data::TF_RECORD,
        data::PARQUET,
        data::ARROW,
        data::PACKED,
        graph::TARGET,
        session::TARGET,
        shard::TARGET,
        chief::TARGET,
        tls::TARGET,
        pem::TARGET,
        http::TARGET,
    ];

    /// Returns the target with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|target| target.name == name)
    }
}

/// Checks an input of the target with this name.
///
/// # Panics
/// If the checked code has a fault, or if no target has this name.
pub fn check(name: &str, bytes: &[u8]) {
    let target = Target::find(name).expect("a target with this name");
    (target.check)(bytes);
}
