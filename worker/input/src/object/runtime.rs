//! The runtime on which requests to stores run. Its callers wait on threads of their own. This module must
//! not depend on stores.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};

use crate::threads;

/// Returns the runtime of all requests to stores. Its only thread waits for replies and computes nothing; it
/// is started with the first request, and lives as long as the process.
pub(super) fn handle() -> io::Result<Handle> {
    static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);
    let mut running = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*running {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    threads::spawn("objects", run)?;
    Ok(running.insert(handle).clone())
}

/// Awaits a request on the runtime. The calling thread may belong to another runtime.
pub(super) fn wait<T: Send + 'static>(request: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    received(&send(request)?)
}

/// Starts a request on the runtime. [`received`] waits for its result.
pub(super) fn send<T: Send + 'static>(
    request: impl Future<Output = T> + Send + 'static,
) -> io::Result<Receiver<T>> {
    let (sender, receiver) = sync_channel(1);
    handle()?.spawn(async move {
        // If the receiver was dropped, the result is not needed any more.
        let _ = sender.send(request.await);
    });
    Ok(receiver)
}

/// Waits for the result of a request.
pub(super) fn received<T>(receiver: &Receiver<T>) -> io::Result<T> {
    receiver.recv().map_err(|_| io::Error::other("a request to a store panicked"))
}
