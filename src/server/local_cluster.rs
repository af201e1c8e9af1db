//! A whole cluster of servers in this process, for programs and tests that have no other hosts.

use std::net::{IpAddr, TcpListener};

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::TaskId;

use super::{Server, ServerOptions};
use crate::error::Error;

impl Server {
    /// Starts a cluster of servers on free ports of the loopback interface, for example with
    /// `&[("ps", 2), ("worker", 2)]`: the names of its jobs, and the number of tasks of each. Returns the
    /// servers in the order of the jobs and tasks.
    ///
    /// # Errors
    /// If the name of a job is invalid, there is no task, a server cannot listen, or a setting is out of
    /// range.
    pub fn local_cluster(jobs: &[(&str, u32)], options: &ServerOptions) -> Result<Vec<Self>, Error> {
        let told = |error: &dyn std::fmt::Display| Error::Cluster(error.to_string());
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for &(name, tasks) in jobs {
            let job = name.parse().map_err(|error| told(&error))?;
            let mut own = Vec::new();
            for index in 0..tasks {
                let listener = TcpListener::bind((IpAddr::from([127, 0, 0, 1]), 0));
                let listener = listener
                    .map_err(|error| Error::Cluster(format!("cannot listen on loopback: {error}")))?;
                own.push(listener.local_addr().map_err(|error| told(&error))?.to_string());
                listeners.push((TaskId::new(job, index), listener));
            }
            addresses.push((job, own));
        }
        let cluster = ClusterSpec::new(addresses).map_err(|error| told(&error))?;
        let start = |(task, listener)| Self::start(cluster.clone(), task, listener, options.clone());
        listeners.into_iter().map(start).collect()
    }
}
