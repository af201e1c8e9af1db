//! What happens to the job, as it happens: server-sent events. A client that reads slowly gets the newest state, never what
//! has piled up; what it holds here is bounded.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::stream::unfold;
use pushpull_chief::ChiefView;
use pushpull_messages::observe::ChiefSnapshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::connections::{CONNECTIONS_MAX, Place};
use super::rendered::json;
use super::routes::{Routes, refusal};
use crate::logging;

/// Clients at a time: half of all connections.
pub(super) const CLIENTS_MAX: usize = CONNECTIONS_MAX / 2;
/// Whatever happens, the state is not told more often,
const GAP_MIN: Duration = Duration::from_millis(250);
/// and, where nothing does, not less.
const GAP_MAX: Duration = Duration::from_secs(1);
/// So long a browser shall wait before it comes again, in milliseconds.
const RETRY_MS: u32 = 2000;

/// Who is told.
pub(super) struct Events {
    clients: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        Self { clients: Arc::new(Semaphore::new(CLIENTS_MAX)) }
    }
}

impl Events {
    /// One more client, where there is room.
    pub(super) fn answer(
        &self,
        request: &HttpRequest,
        chief: ChiefView,
        routes: &web::Data<Routes>,
    ) -> HttpResponse {
        let Ok(permit) = Arc::clone(&self.clients).try_acquire_owned() else {
            let reason =
                format!("{CLIENTS_MAX} clients are told of events already: try again later, or read /job");
            return refusal(StatusCode::SERVICE_UNAVAILABLE, &reason);
        };
        if let Some(place) = request.conn_data::<Place>() {
            place.stays();
        }
        let told = Told {
            snapshots: chief.snapshots(),
            chief,
            routes: routes.clone(),
            last: None,
            point: None,
            log: logging::newest(),
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

/// What one client has been told.
struct Told {
    chief: ChiefView,
    snapshots: watch::Receiver<Arc<ChiefSnapshot>>,
    routes: web::Data<Routes>,
    /// When it was told something last.
    last: Option<Instant>,
    /// When the newest point of the curves that it knows was.
    point: Option<u64>,
    /// The number of the newest log line that it knows.
    log: u64,
    over: bool,
    _permit: OwnedSemaphorePermit,
}

impl Told {
    /// All that is new, when it is time for it; `None` when it has been told the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let mut text = Vec::new();
        match self.last {
            Some(last) => {
                sleep_until(last + GAP_MIN).await;
                // Where the chief is gone this is at once.
                let _ = timeout_at(last + GAP_MAX, self.snapshots.changed()).await;
            }
            None => text.extend(format!("retry: {RETRY_MS}\n").bytes()),
        }
        self.last = Some(Instant::now());
        // Asked first: what is there then is the last.
        self.over = self.snapshots.has_changed().is_err();
        let job = Arc::clone(&self.snapshots.borrow_and_update());
        let job = self.routes.job(&job);
        write(&mut text, "job", &job);
        if let Some(point) = self.chief.curves().last()
            && self.point != Some(point.at_ms)
        {
            self.point = Some(point.at_ms);
            write(&mut text, "point", &json(point));
        }
        let (lines, newest) = logging::since(self.log);
        self.log = newest;
        lines.iter().for_each(|line| write(&mut text, "log", &json(line)));
        if self.over {
            write(&mut text, "end", &job);
        }
        Some(text.into())
    }
}

/// JSON has no line breaks of its own.
fn write(text: &mut Vec<u8>, event: &str, data: &[u8]) {
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(event.as_bytes());
    text.extend_from_slice(b"\ndata: ");
    text.extend_from_slice(data);
    text.extend_from_slice(b"\n\n");
}
