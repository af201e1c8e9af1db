//! Handles requests of clients to save a checkpoint or to stop the job. A client must have the token. The
//! chief decides whether and when a request is carried out.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::StreamExt;
use pushpull_chief::{ChiefView, Command};
use pushpull_messages::observe::JobPhase;
use tokio::time::timeout;

use super::access::Access;
use super::answers::refusal;
use crate::programs::format::clean;

/// The maximum length of the reason that a client gives for its request, in bytes.
const REASON_MAX: usize = 1000;
/// The time limit for the body of a request to arrive; the body states the reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(3);

/// Checks the client and passes the request on to the chief. The body may contain a reason.
pub(super) async fn answer(
    request: &HttpRequest,
    body: web::Payload,
    access: &Access,
    chief: &ChiefView,
    wish: impl FnOnce(String) -> Command,
) -> HttpResponse {
    match permit(request, access, body).await {
        Ok(reason) if reason.is_empty() => tell(chief, wish("requested over HTTP".into())),
        Ok(reason) => tell(chief, wish(reason)),
        Err(refusal) => refusal,
    }
}

fn tell(chief: &ChiefView, wish: Command) -> HttpResponse {
    if wish == Command::Save && !chief.makes_checkpoints() {
        let reason = "this job makes no checkpoints: start its chief with --checkpoint-dir";
        return refusal(StatusCode::CONFLICT, reason);
    }
    let what = match &wish {
        Command::Save => "a checkpoint".to_owned(),
        Command::LearningRate { factor } => format!("a learning rate multiplied by {factor}"),
        Command::Stop { reason } | Command::Drain { reason } => format!("an early end ({reason})"),
    };
    if chief.command(wish) {
        tracing::info!("received a request over HTTP: {what}");
        return HttpResponse::Accepted().json(serde_json::json!({ "wished": true }));
    }
    let reason = match chief.snapshots().borrow().phase {
        JobPhase::Ended => "the job has ended",
        _ => "the job is about to end, or too many requests are waiting: try again later",
    };
    refusal(StatusCode::CONFLICT, reason)
}

/// Returns the reason that the request's body states. If the client may not save or stop the job, or if the
/// body cannot be read, the error is the HTTP response that refuses the request.
async fn permit(request: &HttpRequest, access: &Access, body: web::Payload) -> Result<String, HttpResponse> {
    access.check_control(request).map_err(|refused| *refused)?;
    let too_much = || {
        refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the reason is too long or incomplete, expected at most {REASON_MAX} bytes"),
        )
    };
    match timeout(REASON_TIMEOUT, read(body)).await {
        Ok(Some(reason)) => Ok(one_line(&reason)),
        Ok(None) => Err(too_much()),
        Err(_) => Err(refusal(StatusCode::REQUEST_TIMEOUT, "the reason did not arrive in time")),
    }
}

/// Returns the whole body; `None` if it is too long or incomplete.
async fn read(mut body: web::Payload) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece.ok()?);
        if bytes.len() > REASON_MAX {
            return None;
        }
    }
    Some(bytes)
}

/// Returns the text as one line that can be logged.
fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    clean(&text).trim().to_owned()
}
