//! Listening: accepts links, and handles each in a task of its own. Knows nothing of what a link carries.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::link::Link;

/// How long to wait after an error before accepting again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket, or the like, that accepts links.
pub trait Listener: Send {
    /// Waits for the next link.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Link>>;

    /// Returns the address it listens on; with the actual port if any was requested.
    fn address(&self) -> String;
}

/// Accepts links until `stopping` holds, and runs `handle` for each in a task of its own, at most `links_max`
/// at a time. Returns when all these tasks have ended.
pub(crate) async fn accept_all<F>(
    mut listener: Box<dyn Listener>,
    links_max: u32,
    mut stopping: watch::Receiver<bool>,
    mut handle: impl FnMut(Link) -> F,
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
            next = next => next,
            Some(ended) = tasks.join_next() => {
                if let Err(panic) = ended {
                    tracing::error!("the task of a connection panicked: {panic}");
                }
                continue;
            }
            _ = stopping.wait_for(|&stop| stop) => break,
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
                // Most likely there are no file descriptors left: others must be closed before the next can
                // come.
                tracing::error!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}
