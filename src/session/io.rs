//! The runtime that carries a session's calls, so that a program needs no runtime of its own. The thread that
//! makes a call drives the runtime, because passing a call to another thread and back takes longer than a
//! small run. A thread of the session drives it while there are no calls, to keep the connection alive.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pushpull_identity::ClientCredentials;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Connection, Guest, Patience, Tcp, dial_as_guest};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::error::SessionError;
use crate::incarnation::{incarnation, nonce};
use crate::threads;

/// How long there must be no call before the session's thread drives the runtime. The next call then waits
/// for that thread to stop. A connection may be silent for much longer.
const IDLE_AFTER: Duration = Duration::from_millis(50);

/// The runtime of a session, and its thread, which ends when this value is dropped.
pub(super) struct Io {
    driven: Arc<Driven>,
    thread: Option<JoinHandle<()>>,
}

/// What the session's thread and the callers share.
struct Driven {
    runtime: Runtime,
    calls: Mutex<Calls>,
    changed: Condvar,
    /// Tells the session's thread to let callers drive the runtime.
    wanted: Notify,
}

#[derive(Default)]
struct Calls {
    in_progress: usize,
    /// The number of calls that have begun.
    begun: u64,
    /// Whether the session's thread drives the runtime.
    idle: bool,
    stopped: bool,
}

impl Io {
    /// Starts the thread, and connects to a server. `client` proves the role of this program, if it has one.
    ///
    /// # Errors
    /// If the thread cannot be started, or the server cannot be reached.
    pub fn connect(
        address: String,
        client: Option<ClientCredentials>,
        timeout: Duration,
    ) -> Result<(Self, Connection), SessionError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (calls, changed, wanted) = (Mutex::default(), Condvar::new(), Notify::new());
        let driven = Arc::new(Driven { runtime, calls, changed, wanted });
        let own = Arc::clone(&driven);
        let thread = Some(threads::spawn("pushpull-session", move || own.drive_while_idle())?);
        let io = Self { driven, thread };
        let nonce = nonce();
        let guest = Guest { index: nonce as u32, incarnation: incarnation(), nonce };
        let tcp = Tcp::new(BufferPool::default()).with_client(client);
        let connected = io.wait(async {
            let patience = Patience::of(timeout);
            dial_as_guest(&tcp, &address, &guest, patience).await
        });
        Ok((io, connected?))
    }

    /// Blocks the calling thread until a call has ended. If several threads call, one of them drives the
    /// runtime for all.
    pub fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        let _call = Call::begin(&self.driven);
        self.driven.runtime.block_on(call)
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        self.driven.calls.lock().stopped = true;
        self.driven.changed.notify_all();
        self.driven.wanted.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread fails only if a call has panicked, which its caller has seen.
            let _ = thread.join();
        }
    }
}

/// A call in progress. When this guard is dropped, the call has ended.
struct Call<'a>(&'a Driven);

impl<'a> Call<'a> {
    fn begin(driven: &'a Driven) -> Self {
        let mut calls = driven.calls.lock();
        calls.in_progress += 1;
        calls.begun += 1;
        if calls.idle {
            driven.wanted.notify_one();
        }
        Self(driven)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.calls.lock().in_progress -= 1;
    }
}

impl Driven {
    /// Drives the runtime whenever there has been no call for a while. Returns when the session ends.
    fn drive_while_idle(&self) {
        while self.wait_idle() {
            self.runtime.block_on(self.wanted.notified());
            self.calls.lock().idle = false;
        }
    }

    /// Waits until there has been no call for a while. Returns false if the session ends.
    fn wait_idle(&self) -> bool {
        let (mut calls, mut seen) = (self.calls.lock(), None);
        while !calls.stopped {
            if calls.in_progress == 0 && seen == Some(calls.begun) {
                calls.idle = true;
                return true;
            }
            seen = Some(calls.begun);
            self.changed.wait_for(&mut calls, IDLE_AFTER);
        }
        false
    }
}
