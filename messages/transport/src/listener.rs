//! Accepts links, and handles each link in its own tokio task. This module does not interpret what a link
//! carries.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::accepted::Accepted;
use crate::warnings::Warnings;

/// How long to wait after an error before accepting again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket, or its equivalent in another transport, that accepts links.
pub trait Listener: Send {
    /// Waits for the next link. Does not wait until its other end has proved who it is.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Accepted>>;

    /// Returns the address that the listener is bound to. If port 0 was requested, the address has the port
    /// that was assigned.
    fn address(&self) -> String;
}

/// Accepts links until `stopping` becomes true, and runs `handle` for each link in its own tokio task. At
/// most `links_max` of these tasks run at a time. Returns when all of them have ended.
pub(crate) async fn accept_all<F>(
    mut listener: Box<dyn Listener>,
    links_max: u32,
    mut stopping: watch::Receiver<bool>,
    warnings: &Warnings,
    mut handle: impl FnMut(Accepted) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(links_max as usize));
    let mut tasks = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
            (listener.accept().await, place)
        };
        let (link, place) = tokio::select! {
            biased;
            // Even if peers keep dialling, the server must be able to stop.
            _ = stopping.wait_for(|&stop| stop) => break,
            Some(ended) = tasks.join_next() => {
                if let Err(panic) = ended {
                    tracing::error!("the task of a connection panicked: {panic}");
                }
                continue;
            }
            next = next => next,
        };
        match link {
            Ok(link) => {
                let handled = handle(link);
                let run = async move {
                    handled.await;
                    drop(place);
                };
                tasks.spawn(run.in_current_span());
            }
            // The peer has closed the link already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Most likely there are no file descriptors left: another connection must be closed before
                // the next one can be accepted.
                warnings.limit("this task", "accept", || {
                    tracing::error!(%error, "could not accept a connection");
                });
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}
