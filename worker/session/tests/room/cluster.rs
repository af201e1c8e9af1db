//! A cluster of servers in this process, each on a thread of its own.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, JobName, TaskId};
use pushpull_session::{SessionConfig, SessionServer};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Tcp};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::values::Values;

/// A cluster of the tasks `worker/0`, `worker/1` and so on.
pub(crate) struct Cluster {
    addresses: Vec<String>,
    tasks: Vec<Task>,
}

struct Task {
    variables: Arc<Values>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts servers with these settings.
    pub(crate) fn new(tasks: usize, config: &SessionConfig) -> Self {
        let listen = |_| TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: Vec<TcpListener> = (0..tasks).map(listen).collect();
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let addresses: Vec<String> = listeners.iter().map(address).collect();
        let spec = ClusterSpec::new([(JobName::Worker, addresses.clone())]).unwrap();
        let start = |(index, listener)| Task::start(index as u32, listener, spec.clone(), config.clone());
        let tasks = listeners.into_iter().enumerate().map(start).collect();
        Self { addresses, tasks }
    }

    pub(crate) fn client(&self, task: usize) -> Client {
        Client::new(&self.addresses[task])
    }

    pub(crate) fn address(&self, task: usize) -> &str {
        &self.addresses[task]
    }

    pub(crate) fn variables(&self, task: usize) -> &Values {
        &self.tasks[task].variables
    }

    /// Ends a server at once, as if its process was killed.
    pub(crate) fn kill(&mut self, task: usize) {
        self.tasks[task].stop();
    }
}

impl Task {
    fn start(index: u32, listener: TcpListener, cluster: ClusterSpec, config: SessionConfig) -> Self {
        let (variables, stop) = (Arc::new(Values::default()), CancellationToken::new());
        let (own, stopped) = (Arc::clone(&variables), stop.clone());
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let tcp = Tcp::new(BufferPool::default());
                let (task, nonce) = (TaskId::worker(index), u64::from(index) + 1);
                // All clusters have the same incarnation, from which random numbers follow.
                let incarnation = Incarnation(7);
                let identity = Identity { task, incarnation, cluster, graph: None, http: None, nonce };
                let listener = tcp.listen_on(listener).unwrap();
                let server = SessionServer::start(config, identity, listener, Arc::new(tcp), own).unwrap();
                stopped.cancelled().await;
                drop(server);
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::spawn(serve);
        Self { variables, stop, thread: Some(thread) }
    }

    fn stop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.tasks.iter_mut().for_each(Task::stop);
    }
}
