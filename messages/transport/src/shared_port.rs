//! One listening port for all tasks that a process hosts. A link goes to the task that its first frame names.
//! The tasks of the process reach each other without a socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use pushpull_messages::id::{RequestId, TaskId};
use pushpull_messages::message::{Message, Refusal, RefusalCode};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::Instrument;

use crate::accepted::Accepted;
use crate::buffer::{Credit, Payload, Share};
use crate::error::TransportError;
use crate::handshake::Identity;
use crate::in_process::{BACKLOG_MAX, Queue, link_pair};
use crate::link::{Begun, FrameReceiver, Link};
use crate::listener::{Listener, accept_all};
use crate::secure::over;
use crate::sink::Sink;
use crate::strangers::{Strangers, TooMany};
use crate::transport::Transport;
use crate::warnings::Warnings;
use crate::wire::{Envelope, Limits, WireError};

/// The largest number of links whose first frame is awaited at a time. When the limit is reached, the next
/// link waits to be accepted.
const LINKS_MAX: u32 = 4096;
/// The time limit for the first frame of a link, and for the task to take the link.
const FIRST_FRAME: Duration = Duration::from_secs(10);

/// A port that several tasks of a process share. It closes when the last clone is dropped; the tasks keep the
/// links that they have.
#[derive(Clone)]
pub struct SharedPort {
    tasks: Arc<Tasks>,
    address: Arc<str>,
    /// Closes the port when the last clone is dropped.
    _open: Arc<watch::Sender<bool>>,
}

/// The tasks that accept links at the port.
struct Tasks {
    queues: Mutex<BTreeMap<TaskId, mpsc::Sender<Link>>>,
    first_frame: Limits,
}

/// A link, and the first frame that was read from it.
type Begin = (Link, Result<Option<Envelope>, WireError>);

impl SharedPort {
    /// Begins to accept links from `listener` on the current runtime. `identity` is that of any task of the
    /// process: the first frames of its cluster have about the size of its own.
    pub fn open(listener: Box<dyn Listener>, identity: &Identity) -> Self {
        let hello = Message::from(identity.hello(identity.task));
        let first_frame = Limits::for_hello(hello.encode().len());
        let tasks = Arc::new(Tasks { queues: Mutex::default(), first_frame });
        let (open, closed) = watch::channel(false);
        let (routing, address) = (Arc::clone(&tasks), listener.address().into());
        let run = async move {
            let strangers = Arc::new(Strangers::default());
            let route = |accepted: Accepted| {
                let (routing, strangers) = (Arc::clone(&routing), Arc::clone(&strangers));
                async move { routing.accept(accepted, &strangers).await }
            };
            accept_all(listener, LINKS_MAX, closed, &Warnings::default(), route).await;
        };
        tokio::spawn(run.in_current_span());
        Self { tasks, address, _open: Arc::new(open) }
    }

    /// Returns the listener of one task. Links to the task are refused while there is none, as if its port
    /// were closed; the peer then dials again.
    ///
    /// # Errors
    /// If the task has a listener already.
    pub fn listener(&self, task: TaskId) -> Result<Box<dyn Listener>, TransportError> {
        let (sender, links) = mpsc::channel(BACKLOG_MAX);
        let mut queues = self.tasks.queues.lock();
        if queues.get(&task).is_some_and(|queue| !queue.is_closed()) {
            return Err(TransportError::InUse { address: format!("{task} at {}", self.address) });
        }
        queues.insert(task, sender);
        Ok(Box::new(Queue { links, address: self.address.to_string() }))
    }

    /// Returns the transport of `task`, which this process hosts: it reaches the tasks at `own` within the
    /// process, and all others through `outside`. When the task listens, at whatever address, it gets its
    /// listener of this port.
    pub fn transport(&self, task: TaskId, own: String, outside: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(Hosted { port: self.clone(), task, own, outside })
    }
}

impl Tasks {
    /// Opens a connection, reads its first frame, and passes the link on to the task that the frame names.
    async fn accept(self: Arc<Self>, accepted: Accepted, strangers: &Arc<Strangers>) {
        let peer = accepted.peer().to_owned();
        // A task logs and counts what the port refuses.
        let refused = |error: TooMany| (over(peer.clone(), Some(error.into())), Err(error.into()));
        let stranger = match strangers.enter(&peer) {
            Ok(stranger) => stranger,
            Err(error) => return self.route(refused(error)).await,
        };
        let begin = async { self.begin(accepted.open().await).await };
        let begun = stranger.unless_displaced(begin).await;
        if matches!(begun, Ok((_, Ok(_)))) {
            stranger.pass();
        }
        self.route(begun.unwrap_or_else(refused)).await;
    }

    /// Reads the first frame of a link.
    async fn begin(&self, mut link: Link) -> Begin {
        link.receiver.trust(self.first_frame, None);
        let first = timeout(FIRST_FRAME, link.receiver.receive()).await;
        (link, first.unwrap_or(Err(WireError::Stalled(FIRST_FRAME.as_secs()))))
    }

    /// Passes a link on to the task that its first frame names. The task counts it from then on.
    async fn route(&self, (mut link, first): Begin) {
        if matches!(first, Ok(None)) {
            // Most likely, the peer only looked whether the port is open.
            return;
        }
        let request = first.as_ref().ok().and_then(|first| first.as_ref()).map(|first| first.request);
        let Some(queue) = self.queue(&first) else {
            let reason = "the task that was dialled is not serving yet";
            let refusal = Refusal::new(RefusalCode::Unavailable, reason).into();
            let request = request.unwrap_or(RequestId(0));
            let answer = Envelope { request, message: refusal, payload: Payload::EMPTY };
            // The peer may be gone, or may read nothing.
            let _ = timeout(FIRST_FRAME, link.sender.send(answer)).await;
            return;
        };
        let Link { sender, receiver, peer, proven } = link;
        let receiver = Box::new(Reread { first: Some(first), rest: receiver });
        // A task that takes no links for so long is overloaded, and the peer dials again.
        let _ = timeout(FIRST_FRAME, queue.send(Link { sender, receiver, peer, proven })).await;
    }

    /// Returns the queue of the task that the first frame of a link names. If the frame names no task, any
    /// task may refuse the link, because all of them refuse such links in the same way.
    fn queue(&self, first: &Result<Option<Envelope>, WireError>) -> Option<mpsc::Sender<Link>> {
        let queues = self.queues.lock();
        let mut open = queues.iter().filter(|(_, queue)| !queue.is_closed());
        match first {
            Ok(Some(Envelope { message: Message::Hello(hello), .. })) if hello.to.is_some() => {
                open.find(|&(&task, _)| Some(task) == hello.to).map(|(_, queue)| queue.clone())
            }
            _ => open.next().map(|(_, queue)| queue.clone()),
        }
    }
}

/// The half of a link that reads, with the frame that has been read already.
struct Reread {
    first: Option<Result<Option<Envelope>, WireError>>,
    rest: Box<dyn FrameReceiver>,
}

impl FrameReceiver for Reread {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>> {
        match self.first.take() {
            Some(first) => std::future::ready(first).boxed(),
            None => self.rest.receive(),
        }
    }

    fn begin(&mut self) -> BoxFuture<'_, Result<Option<Begun>, WireError>> {
        match self.first.take() {
            Some(first) => std::future::ready(first.map(|first| first.map(Begun::Whole))).boxed(),
            None => self.rest.begin(),
        }
    }

    fn finish(&mut self, sink: Option<Box<dyn Sink>>) -> BoxFuture<'_, Result<Payload, WireError>> {
        self.rest.finish(sink)
    }

    fn trust(&mut self, limits: Limits, share: Option<Share>) {
        self.rest.trust(limits, share);
    }

    fn take_header_credit(&mut self) -> Option<Credit> {
        self.rest.take_header_credit()
    }
}

/// The transport of a task that shares its port.
struct Hosted {
    port: SharedPort,
    task: TaskId,
    /// The address at which other processes reach the port.
    own: String,
    outside: Arc<dyn Transport>,
}

impl Transport for Hosted {
    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        std::future::ready(self.port.listener(self.task)).boxed()
    }

    fn streams(&self) -> bool {
        self.outside.streams()
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        if address != self.own {
            return self.outside.dial(address);
        }
        let (near, far) = link_pair(address);
        let tasks = Arc::clone(&self.port.tasks);
        let route = async move { tasks.route(tasks.begin(far).await).await };
        tokio::spawn(route.in_current_span());
        std::future::ready(Ok(near)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::id::{Incarnation, JobName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::{
        DialError, InProcess, Patience, Peer, Reply, Server, ServerConfig, Service, Tcp, dial, serve,
    };

    /// A service that answers no request.
    struct Silent;

    impl Service for Silent {
        fn call(&self, _: &Peer, _: Message, _: Payload, _: Reply) {}
    }

    fn identity(task: TaskId, workers: &str) -> Identity {
        let cluster = ClusterSpec::new([(JobName::Worker, workers.split(';').collect())]).unwrap();
        Identity { task, incarnation: Incarnation(1), cluster, graph: None, http: None, nonce: 0 }
    }

    const TASKS: [TaskId; 3] = [TaskId::CHIEF, TaskId::ps(0), TaskId::worker(0)];

    async fn open(outside: &dyn Transport) -> (SharedPort, String) {
        let listener = outside.listen("127.0.0.1:0").await.unwrap();
        let address = listener.address();
        (SharedPort::open(listener, &identity(TASKS[0], "w:1;w:2")), address)
    }

    fn start(port: &SharedPort, task: TaskId) -> Server {
        let listener = port.listener(task).unwrap();
        serve(listener, identity(task, "w:1;w:2"), Arc::new(Silent), ServerConfig::default())
    }

    /// Dials a task, and returns the task that answers.
    async fn reached(transport: &dyn Transport, address: &str, to: TaskId) -> Result<TaskId, DialError> {
        let from = identity(TaskId::worker(1), "w:1;w:2");
        let soon = Patience::of(Duration::from_millis(300));
        Ok(dial(transport, address, &from, to, soon).await?.welcome().task)
    }

    #[tokio::test]
    async fn a_link_reaches_the_task_that_it_names() {
        let transports: [Arc<dyn Transport>; 2] = [Arc::new(Tcp::default()), Arc::new(InProcess::new())];
        for outside in transports {
            let (port, address) = open(&*outside).await;
            let _servers = TASKS.map(|task| start(&port, task));
            let inside = port.transport(TASKS[2], address.clone(), Arc::clone(&outside));
            for task in TASKS {
                assert_eq!(reached(&*outside, &address, task).await.unwrap(), task);
                assert_eq!(reached(&*inside, &address, task).await.unwrap(), task);
            }
            assert!(port.listener(TASKS[1]).is_err(), "it has a listener");
        }
    }

    #[tokio::test]
    async fn a_task_that_does_not_listen_yet_is_dialled_again() {
        let (port, address) = open(&Tcp::default()).await;
        let inside = port.transport(TASKS[2], address.clone(), Arc::new(Tcp::default()));
        let missing = reached(&Tcp::default(), &address, TASKS[1]).await.unwrap_err();
        assert!(missing.to_string().contains("is not serving yet"), "{missing}");
        let server = start(&port, TASKS[1]);
        assert_eq!(reached(&Tcp::default(), &address, TASKS[1]).await.unwrap(), TASKS[1]);
        server.stop().await;
        assert!(reached(&Tcp::default(), &address, TASKS[1]).await.is_err());
        // A task that listens at any address gets its own listener of the port.
        let own = inside.listen("anywhere:1").await.unwrap();
        assert_eq!(own.address(), address);
        assert!(inside.listen("anywhere:1").await.is_err());
        drop(own);
        assert!(inside.listen("anywhere:1").await.is_ok(), "its place is free again");
    }

    #[tokio::test]
    async fn a_stranger_is_refused_and_a_dropped_port_closes() {
        let (port, address) = open(&Tcp::default()).await;
        let server = start(&port, TASKS[1]);
        let stranger = identity(TaskId::worker(1), "w:1;w:3");
        let soon = Patience::of(Duration::from_secs(5));
        let refused = dial(&Tcp::default(), &address, &stranger, TASKS[1], soon).await.unwrap_err();
        assert!(matches!(refused, DialError::Refused { .. }), "{refused}");
        // Bytes of another protocol close their connection only.
        let mut other = TcpStream::connect(&address).await.unwrap();
        other.write_all(&[b'x'; 64]).await.unwrap();
        let _ = other.read_to_end(&mut Vec::new()).await;
        assert_eq!(reached(&Tcp::default(), &address, TASKS[1]).await.unwrap(), TASKS[1]);
        let closed = server.observer().snapshot().closed;
        assert!(closed.iter().any(|(reason, _)| reason == "refused"), "{closed:?}");
        drop((port, server));
        let gone = async { while TcpStream::connect(&address).await.is_ok() {} };
        timeout(Duration::from_secs(5), gone).await.expect("the port is closed");
    }
}
