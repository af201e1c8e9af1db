//! The files of checkpoints in the memory of the ps tasks, as a ps task keeps them, serves them, and reaches
//! those of the other ps tasks. It dials a ps task only for these files. Does not know what the files
//! contain.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{
    AccessFiles, FileAccess, FilesAccessed, FilesResult, ListedFile, Refusal, RefusalCode,
};
use pushpull_storage::{FileCallError, FileTasks, MemoryFiles, Uploader};
use pushpull_transport::buffer::{BufferPool, Payload, Segment};
use pushpull_transport::{
    CallError, Identity, Patience, Peer, ReconnectingClient, Reply, RetryConfig, Transport,
};

/// How long to dial another ps task before a file goes to the next one.
const DIAL_FOR: Duration = Duration::from_secs(3);

/// A way to dial the other ps tasks of the cluster.
#[derive(Clone)]
pub struct PeerTransport(Arc<dyn Transport>);

impl PeerTransport {
    /// Wraps the transport of the task.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self(transport)
    }
}

impl fmt::Debug for PeerTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTransport")
    }
}

/// The files of a ps task, and the way to those of the other ps tasks.
#[derive(Clone)]
pub(crate) struct PsFiles(Arc<Shared>);

struct Shared {
    own: Mutex<MemoryFiles>,
    pool: BufferPool,
    identity: Identity,
    /// `None` if the task dials no others.
    transport: Option<PeerTransport>,
    clients: BTreeMap<TaskId, Client>,
}

/// The client of another ps task; `None` until it is needed.
type Client = tokio::sync::Mutex<Option<Arc<ReconnectingClient>>>;

impl PsFiles {
    /// Returns the files of a ps task that has none yet. They will take at most `bytes_max` bytes.
    pub(crate) fn new(
        identity: Identity,
        transport: Option<PeerTransport>,
        bytes_max: u64,
        pool: BufferPool,
    ) -> Self {
        let count = identity.cluster.ps_addresses().len() as u32;
        let others = (0..count).map(TaskId::ps).filter(|&task| task != identity.task && transport.is_some());
        let clients = others.map(|task| (task, Client::default())).collect();
        let own = Mutex::new(MemoryFiles::new(bytes_max));
        Self(Arc::new(Shared { own, pool, identity, transport, clients }))
    }

    /// Handles the request of a chief or a ps task.
    pub(crate) fn serve(&self, peer: &Peer, request: AccessFiles, payload: &Payload, reply: Reply) {
        match self.access(peer, request.access, payload) {
            Ok((result, found)) => reply.send(FilesAccessed { result }, found),
            Err(Refusal { code, reason }) => reply.refuse(code, reason),
        }
    }

    fn access(
        &self,
        peer: &Peer,
        access: FileAccess,
        payload: &Payload,
    ) -> Result<(FilesResult, Payload), Refusal> {
        let files = &self.0.own;
        let result = match access {
            FileAccess::Put { name, upload, offset, total } => {
                let from = Uploader { task: peer.task, incarnation: peer.incarnation, upload };
                // The piece is copied, because the payload's memory belongs to the limits of the connections.
                let piece = payload.segments().first().map(|piece| Bytes::copy_from_slice(piece.as_bytes()));
                let put = files.lock().put_piece(from, &name, offset, total, piece.unwrap_or_default());
                put.map_err(|error| Refusal::new(RefusalCode::Overloaded, error))?;
                FilesResult::Done
            }
            FileAccess::Get { name, offset, bytes } => {
                let found = files.lock().get(&name, offset..offset.saturating_add(bytes));
                return Ok(match found {
                    Some((bytes, parts)) => (FilesResult::Found { bytes }, self.payload(&parts)),
                    None => (FilesResult::Missing, Payload::EMPTY),
                });
            }
            FileAccess::List { folder } => {
                let listed = files.lock().list(&folder).into_iter();
                FilesResult::Listed(listed.map(|(name, bytes)| ListedFile { name, bytes }).collect())
            }
            FileAccess::Delete { name } => {
                files.lock().delete(&name);
                FilesResult::Done
            }
        };
        Ok((result, Payload::EMPTY))
    }

    fn payload(&self, parts: &[Bytes]) -> Payload {
        let bytes = parts.iter().map(Bytes::len).sum();
        if bytes == 0 {
            return Payload::EMPTY;
        }
        let (mut buffer, mut at) = (self.0.pool.take(bytes), 0);
        for part in parts {
            buffer.as_bytes_mut()[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Payload::new(vec![Segment::whole(Arc::new(buffer))])
    }

    /// Returns a client of another ps task. Dials the task if there is no connection to its current start.
    async fn client(&self, task: TaskId) -> Result<Arc<ReconnectingClient>, String> {
        let Shared { identity, transport, clients, .. } = &*self.0;
        let (Some(client), Some(PeerTransport(transport))) = (clients.get(&task), transport) else {
            return Err("this task cannot dial it".to_owned());
        };
        let mut client = client.lock().await;
        if let Some(client) = client.as_ref().filter(|client| !client.is_lost()) {
            return Ok(Arc::clone(client));
        }
        *client = None;
        let address = identity.cluster.reached_at(task).ok_or("it is not in the cluster spec")?;
        let (patience, transport) = (Patience::of(DIAL_FOR), Arc::clone(transport));
        let retry = RetryConfig { redial_for: DIAL_FOR, ..RetryConfig::default() };
        let connected =
            ReconnectingClient::connect(transport, address.as_str(), identity, task, patience, retry).await;
        let connected = Arc::new(connected.map_err(|error| error.to_string())?);
        *client = Some(Arc::clone(&connected));
        Ok(connected)
    }

    async fn ask(
        &self,
        task: TaskId,
        access: &FileAccess,
        piece: &[u8],
    ) -> Result<(FilesResult, Bytes), String> {
        let mut dialled_again = false;
        loop {
            let client = self.client(task).await?;
            match client.access_files(access.clone(), piece).await {
                Ok((result, found)) => return Ok((result, found.into())),
                // The task may have been started again.
                Err(CallError::Lost { .. }) if !dialled_again => dialled_again = true,
                Err(CallError::Refused { refusal, .. }) => return Err(refusal.to_string()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl FileTasks for PsFiles {
    fn tasks(&self, _: &str) -> Vec<TaskId> {
        let own = self.0.identity.task;
        let (before, after): (Vec<_>, Vec<_>) = self.0.clients.keys().partition(|&&task| task < own);
        [own].into_iter().chain(after.into_iter().chain(before).copied()).collect()
    }

    fn own(&self) -> Option<(TaskId, &Mutex<MemoryFiles>)> {
        Some((self.0.identity.task, &self.0.own))
    }

    fn call(
        &self,
        task: TaskId,
        access: FileAccess,
        piece: Bytes,
    ) -> BoxFuture<'_, Result<(FilesResult, Bytes), FileCallError>> {
        async move { self.ask(task, &access, &piece).await.map_err(|reason| FileCallError { task, reason }) }
            .boxed()
    }
}
