//! The body of a fuzz target: an endpoint, and clients that send it any bytes. The connections are in memory
//! and the time is virtual; all that reads and answers them is the code of the server. Wanted properties: (A)
//! no bytes cause a panic; (B) only a client that has sent the token, or the cookie of a session, reads what
//! is guarded; (C) only such a client saves or stops the job, and with a cookie only from a page of the
//! endpoint; (D) a request to another host gets nothing; (E) what a client sends is in no header and no log;
//! (F) answers, guesses and connections are bounded.

mod endpoint;
mod replies;
mod said;
mod wire;

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tracing::Dispatch;

use self::endpoint::Tried;
use crate::programs::logging;

/// How far inputs can come, the shortest way first.
pub const STAGES: [&str; 7] =
    ["no answer", "no request", "refused", "answered", "logged in", "a session used", "a request acted on"];
/// The byte between two connections of an input.
pub const NEXT: u8 = 0xff;
/// The number of bytes at the begin of an input that choose the endpoint.
pub const HEAD: usize = 2;

/// The largest number of connections of an input, without repetitions.
const CONNECTIONS_MAX: usize = 8;
/// How often a client sends the same bytes: once more than it may guess.
const REPEATED: usize = 12;
/// The time after which a connection must have ended or had an answer: the limits for the head and the body
/// of a request, and for the end of the connection.
const ENDED_WITHIN: Duration = Duration::from_secs(8);

thread_local! {
    static RUNTIME: Runtime =
        Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    static LOG: Dispatch = logging::silent();
}

/// Checks one input. Its first two bytes choose the endpoint. Then follow connections, with [`NEXT`] between
/// two of them. The first byte of a connection says who sends the rest, and how.
///
/// # Panics
/// If a property does not hold.
pub fn check(bytes: &[u8]) -> usize {
    let Some((&[kind, tasks], rest)) = bytes.split_first_chunk::<HEAD>() else { return 0 };
    LOG.with(|log| {
        tracing::dispatcher::with_default(log, || {
            RUNTIME.with(|runtime| LocalSet::new().block_on(runtime, connections(kind, tasks, rest)))
        })
    })
}

async fn connections(kind: u8, tasks: u8, bytes: &[u8]) -> usize {
    let mut tried = Tried::new(kind, tasks).await;
    let mut stage = 0;
    for connection in bytes.split(|&byte| byte == NEXT).take(CONNECTIONS_MAX) {
        let Some((&how, sent)) = connection.split_first() else { continue };
        let times = [1, 1, 2, REPEATED][usize::from(how >> 2) % 4];
        for _ in 0..times {
            stage = stage.max(tried.connect(how, sent).await);
        }
    }
    tried.check_log();
    stage
}
