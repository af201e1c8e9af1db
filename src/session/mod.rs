//! A session: the connection of a program to a server, which runs parts of the program's graphs.

mod device_setter;
mod error;
mod evaluation;
mod io;
mod opened;
mod options;
mod ps_strategy;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pushpull_identity::{ClientCredentials, TlsFiles};
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, TaskId};
use pushpull_messages::message::{Cancel, Cancelled, Describe, Described, Fed, Ran, Reset, ResetDone, Run};
use pushpull_messages::tensor::Tensor;
use pushpull_session::{payload_of, tensors_of};
use pushpull_transport::Connection;
use pushpull_transport::buffer::Payload;

pub use device_setter::ReplicaDeviceSetter;
pub(crate) use error::CLIENT_ENV;
pub use error::SessionError;
use io::Io;
use opened::Opened;
pub use options::SessionOptions;
pub use ps_strategy::{GreedyLoadBalancing, PsOp, PsStrategy, byte_size_load_fn};

/// A session with a server. It reaches all tasks of the server's cluster. Several threads may use a session
/// at the same time; clones share the connection. The methods block, so they panic on a thread of an
/// asynchronous runtime: call them from a thread for blocking work.
///
/// ```no_run
/// use pushpull::{GraphBuilder, Session};
///
/// let mut g = GraphBuilder::new("hello");
/// let hello = g.text("Hello, distributed!");
/// let graph = g.finish_session()?;
/// let session = Session::connect("pushpull://localhost:2222")?;
/// let fetched = session.run(&graph, &[], &[hello])?;
/// assert_eq!(fetched[0].texts(), Some(&["Hello, distributed!".to_owned()][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Connection,
    options: SessionOptions,
    opened: Opened,
    /// The number of the last run.
    runs: AtomicU64,
    /// The numbers of the runs in progress.
    running: Mutex<BTreeSet<u64>>,
    /// Keeps the thread alive that carries the calls.
    io: Io,
}

impl Session {
    /// Connects to the server at `target`, such as `pushpull://localhost:2222`. Waits a while if the server
    /// does not answer yet. If the servers have a join string, the environment variable `PUSHPULL_CLIENT`
    /// must hold a client string. If they have certificates that were made elsewhere, `PUSHPULL_TLS_CA`,
    /// `PUSHPULL_TLS_CERT` and `PUSHPULL_TLS_KEY` must name the files of one.
    ///
    /// # Errors
    /// If the target or the client string is not valid, no server answers there, or it refuses this program.
    pub fn connect(target: &str) -> Result<Self, SessionError> {
        Self::connect_with(target, SessionOptions::default())
    }

    /// Connects like [`connect`](Self::connect), with options.
    ///
    /// # Errors
    /// The same as those of [`connect`](Self::connect).
    pub fn connect_with(target: &str, mut options: SessionOptions) -> Result<Self, SessionError> {
        if options.client.is_none() && options.certificate.is_none() {
            options.certificate = TlsFiles::from_env()?;
            let text = std::env::var(CLIENT_ENV).ok().filter(|text| !text.is_empty());
            options.client = text.map(|text| text.trim().parse()).transpose()?;
        }
        Self::connect_as_told(target, options)
    }

    /// Connects like [`connect_with`](Self::connect_with), but does not look into the environment.
    pub(crate) fn connect_as_told(target: &str, options: SessionOptions) -> Result<Self, SessionError> {
        let address = error::address(target)?;
        let client = match (&options.client, &options.certificate) {
            (None, None) => None,
            (Some(client), None) => Some(ClientCredentials::new(client.clone())?),
            (None, Some(files)) => Some(ClientCredentials::with_files(files)?),
            (Some(_), Some(_)) => return Err(SessionError::TwoProofs),
        };
        let (io, connection) = Io::connect(address, client, options.connect_timeout)?;
        let (opened, runs, running) = Default::default();
        Ok(Self { shared: Arc::new(Shared { connection, options, opened, runs, running, io }) })
    }

    /// Returns the task that the session is connected to. It runs the operations that request no task.
    pub fn task(&self) -> TaskId {
        self.shared.connection.peer()
    }

    /// Runs what `fetches` need, and returns their values in the same order. `feeds` has a value for each
    /// input and placeholder that the run needs.
    ///
    /// A variable that the server does not have yet is created with its initial value. An operation reads a
    /// variable before operations change it that come later in the graph.
    ///
    /// # Errors
    /// If the graph, a feed or a fetch is not valid, if an operation or a task fails, or if the server is
    /// lost. If the server is lost, the run may have had all of its effects, a part of them or none.
    pub fn run(
        &self,
        graph: &GraphSpec,
        feeds: &[(NodeId, Tensor)],
        fetches: &[NodeId],
    ) -> Result<Vec<Tensor>, SessionError> {
        self.run_with(graph, feeds, fetches, &[])
    }

    /// Runs what `targets` need without returning their values, such as an operation that trains.
    ///
    /// # Errors
    /// The same as those of [`run`](Self::run).
    pub fn run_targets(
        &self,
        graph: &GraphSpec,
        feeds: &[(NodeId, Tensor)],
        targets: &[NodeId],
    ) -> Result<(), SessionError> {
        self.run_with(graph, feeds, &[], targets).map(|_| ())
    }

    /// Runs what `fetches` and `targets` need, and returns the values of the fetches.
    ///
    /// # Errors
    /// The same as those of [`run`](Self::run).
    pub fn run_with(
        &self,
        graph: &GraphSpec,
        feeds: &[(NodeId, Tensor)],
        fetches: &[NodeId],
        targets: &[NodeId],
    ) -> Result<Vec<Tensor>, SessionError> {
        let shared = &*self.shared;
        let payload = payload_of(feeds.iter().map(|(_, value)| value));
        let number = shared.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let fed = feeds.iter().map(|(node, value)| Fed { node: *node, tensor: value.spec() });
        let opened = shared.opened.open(&shared.connection, &shared.io, graph, &shared.options)?;
        let request = Run {
            graph: opened.number,
            number,
            feeds: fed.collect(),
            fetches: fetches.to_vec(),
            targets: targets.to_vec(),
        };
        let _running = Running::new(shared, number);
        let answer = shared.io.wait(shared.connection.call::<Ran>(request, payload));
        let (ran, payload) = answer?;
        fetched(&ran, &payload, fetches.len())
    }

    /// Ends all runs of this session that are in progress. Each returns an error.
    ///
    /// # Errors
    /// If the server is lost.
    pub fn cancel(&self) -> Result<(), SessionError> {
        let shared = &*self.shared;
        let running: Vec<u64> = shared.running.lock().iter().copied().collect();
        for number in running {
            let _: (Cancelled, _) =
                shared.io.wait(shared.connection.call(Cancel { number }, Payload::EMPTY))?;
        }
        Ok(())
    }

    /// Returns the tasks of the server's cluster with their devices, containers and variables.
    ///
    /// # Errors
    /// If the server is lost.
    pub fn describe(&self) -> Result<Described, SessionError> {
        let request = Describe { own: false, variables: true };
        Ok(self.shared.io.wait(self.shared.connection.call(request, Payload::EMPTY))?.0)
    }

    /// Removes the variables of these containers from all tasks, or all variables if `containers` is empty.
    /// Returns the number of variables removed.
    ///
    /// # Errors
    /// If the server or another task is lost.
    pub fn reset(&self, containers: &[&str]) -> Result<u64, SessionError> {
        let containers = containers.iter().map(|&name| name.to_owned()).collect();
        let request = Reset { containers, own: false };
        let answer: (ResetDone, _) =
            self.shared.io.wait(self.shared.connection.call(request, Payload::EMPTY))?;
        Ok(answer.0.variables)
    }

    /// Returns the name of the device that each node of a graph runs on, in the order of the nodes.
    ///
    /// # Errors
    /// If the graph is not valid, or requests a device that does not exist.
    pub fn placement(&self, graph: &GraphSpec) -> Result<Vec<String>, SessionError> {
        self.shared.opened.placement(&self.shared.connection, &self.shared.io, graph, &self.shared.options)
    }
}

/// A run in progress. When this guard is dropped, the run has ended.
struct Running<'a> {
    shared: &'a Shared,
    number: u64,
}

impl<'a> Running<'a> {
    fn new(shared: &'a Shared, number: u64) -> Self {
        shared.running.lock().insert(number);
        Self { shared, number }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shared.running.lock().remove(&self.number);
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("task", &self.task()).finish_non_exhaustive()
    }
}

/// Decodes the values of fetches.
fn fetched(ran: &Ran, payload: &Payload, expected: usize) -> Result<Vec<Tensor>, SessionError> {
    if ran.fetches.len() != expected {
        let got = ran.fetches.len();
        return Err(SessionError::Answer(format!("the server returned {got} values, expected {expected}")));
    }
    let values =
        tensors_of(&ran.fetches, payload).map_err(|error| SessionError::Answer(error.to_string()))?;
    Ok(values.into_iter().map(Arc::unwrap_or_clone).collect())
}
