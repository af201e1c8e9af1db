//! Streams changes of the job as server-sent events. A client that reads slowly skips states and gets the
//! newest one, so the memory for each client is bounded.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse};
use futures_util::stream::unfold;
use pushpull_chief::ChiefView;
use pushpull_messages::observe::ChiefSnapshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::answers::refusal;
use super::connections::{CONNECTIONS_MAX, Place};
use super::rendered::{JobText, json};
use crate::programs::logging::Recent;

/// The maximum number of clients that receive events at a time. The other half of the connections stays free
/// for requests.
pub(super) const CLIENTS_MAX: usize = CONNECTIONS_MAX / 2;
/// The minimum time between two states that are sent to a client.
const GAP_MIN: Duration = Duration::from_millis(250);
/// The maximum time between two states that are sent to a client, even if nothing changes.
const GAP_MAX: Duration = Duration::from_secs(1);
/// The time that a browser waits before it connects again, in milliseconds.
const RETRY_MS: u32 = 2000;

/// The clients that receive events.
pub(super) struct Events {
    clients: Arc<Semaphore>,
}

/// The sources of a client's events: the chief's snapshots and the log.
pub(super) struct Source {
    pub(super) chief: ChiefView,
    pub(super) job: Arc<JobText>,
    pub(super) log: Arc<Recent>,
}

impl Default for Events {
    fn default() -> Self {
        Self { clients: Arc::new(Semaphore::new(CLIENTS_MAX)) }
    }
}

impl Events {
    /// Begins to send events to a client, or refuses the request if [`CLIENTS_MAX`] clients already receive
    /// events. The answer ends at the time `end`, if there is one.
    pub(super) fn answer(&self, request: &HttpRequest, source: Source, end: Option<Instant>) -> HttpResponse {
        let Ok(permit) = Arc::clone(&self.clients).try_acquire_owned() else {
            let reason =
                format!("{CLIENTS_MAX} clients already receive events: try again later, or read /job");
            return refusal(StatusCode::SERVICE_UNAVAILABLE, &reason);
        };
        if let Some(place) = request.conn_data::<Place>() {
            place.stays();
        }
        let told = Told {
            snapshots: source.chief.snapshots(),
            last: None,
            point: None,
            line: source.log.newest(),
            source,
            end,
            over: false,
            _permit: permit,
        };
        let stream = unfold(told, |mut told| async {
            let events = told.next().await?;
            Some((Ok::<_, Infallible>(events), told))
        });
        HttpResponse::Ok()
            .content_type("text/event-stream")
            .insert_header((header::CONNECTION, "close"))
            .streaming(Box::pin(stream))
    }
}

/// The events that one client has received so far, and the sources of further events.
struct Told {
    source: Source,
    snapshots: watch::Receiver<Arc<ChiefSnapshot>>,
    /// The time at which the last events were sent.
    last: Option<Instant>,
    /// The time of the newest curve point that was sent to this client, in milliseconds.
    point: Option<u64>,
    /// The number of the newest log line that was sent.
    line: u64,
    /// The time at which the client's session ends.
    end: Option<Instant>,
    over: bool,
    _permit: OwnedSemaphorePermit,
}

impl Told {
    /// Waits for the next events and returns them. Returns `None` if the job's end has been sent already, or
    /// if the client may receive no more.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let mut text = Vec::new();
        match self.last {
            Some(last) => {
                sleep_until(last + GAP_MIN).await;
                // `changed` returns at once if the chief is gone.
                let _ = timeout_at(last + GAP_MAX, self.snapshots.changed()).await;
            }
            None => text.extend(format!("retry: {RETRY_MS}\n").bytes()),
        }
        let now = Instant::now();
        if self.end.is_some_and(|end| now >= end) {
            return None;
        }
        self.last = Some(now);
        // The end of the chief is checked before the snapshot is read. If the chief has ended at the check,
        // the snapshot that is then read is certainly the last one.
        self.over = self.snapshots.has_changed().is_err();
        let job = Arc::clone(&self.snapshots.borrow_and_update());
        let job = self.source.job.of(&job);
        write(&mut text, "job", &job);
        if let Some(point) = self.source.chief.curves().last()
            && self.point != Some(point.at_ms)
        {
            self.point = Some(point.at_ms);
            write(&mut text, "point", &json(point));
        }
        let (lines, newest) = self.source.log.since(self.line);
        self.line = newest;
        lines.iter().for_each(|line| write(&mut text, "log", &json(line)));
        if self.over {
            write(&mut text, "end", &job);
        }
        Some(text.into())
    }
}

/// Appends one event. `data` is JSON on one line.
fn write(text: &mut Vec<u8>, event: &str, data: &[u8]) {
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(event.as_bytes());
    text.extend_from_slice(b"\ndata: ");
    text.extend_from_slice(data);
    text.extend_from_slice(b"\n\n");
}
