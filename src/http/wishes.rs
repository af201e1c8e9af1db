//! What a person may want of the job, and who may: whoever bears the token. What becomes of it is the chief's matter.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::StreamExt;
use pushpull_chief::{ChiefView, Wish};
use pushpull_messages::observe::JobPhase;
use std::time::Duration;
use tokio::time::timeout;

use super::routes::refusal;
use super::token::{TOKEN_ENV, Token};
use crate::top::clean;

/// Most bytes of a reason.
const REASON_MAX: usize = 1000;
/// So long it may take to come.
const REASON_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes that wish, for which the body may give a reason.
pub(super) async fn answer(
    request: &HttpRequest,
    body: web::Payload,
    token: Option<&Token>,
    chief: &ChiefView,
    wish: impl FnOnce(String) -> Wish,
) -> HttpResponse {
    match permit(request, token, body).await {
        Ok(reason) if reason.is_empty() => tell(chief, wish("asked for over HTTP".into())),
        Ok(reason) => tell(chief, wish(reason)),
        Err(refusal) => refusal,
    }
}

fn tell(chief: &ChiefView, wish: Wish) -> HttpResponse {
    if wish == Wish::Save && !chief.makes_checkpoints() {
        let reason = "this job makes no checkpoints: start its chief with --checkpoint-dir to have them";
        return refusal(StatusCode::CONFLICT, reason);
    }
    let what = match &wish {
        Wish::Save => "a checkpoint".to_owned(),
        Wish::Stop { reason } | Wish::Drain { reason } => format!("an early end ({reason})"),
    };
    if chief.wish(wish) {
        tracing::info!("wished for over HTTP: {what}");
        return HttpResponse::Accepted().json(serde_json::json!({ "wished": true }));
    }
    let reason = match chief.snapshots().borrow().phase {
        JobPhase::Ended => "the job has ended: there is nothing more to do",
        _ => "it is about to end, or too many wishes wait: try again later",
    };
    refusal(StatusCode::CONFLICT, reason)
}

/// The reason that the request gives, where it may be made.
async fn permit(
    request: &HttpRequest,
    token: Option<&Token>,
    body: web::Payload,
) -> Result<String, HttpResponse> {
    let Some(token) = token else {
        let reason = format!(
            "nobody may: start the chief with --http-token-file FILE or {TOKEN_ENV} to let whoever knows it"
        );
        return Err(refusal(StatusCode::FORBIDDEN, &reason));
    };
    let given = request.headers().get(header::AUTHORIZATION);
    if !given.is_some_and(|given| token.is_in(given.as_bytes())) {
        let mut answer = refusal(
            StatusCode::UNAUTHORIZED,
            "expected 'Authorization: Bearer TOKEN' with the token that the chief was started with",
        );
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        return Err(answer);
    }
    let too_much =
        || refusal(StatusCode::PAYLOAD_TOO_LARGE, &format!("a reason has at most {REASON_MAX} bytes"));
    match timeout(REASON_TIMEOUT, read(body)).await {
        Ok(Some(reason)) => Ok(one_line(&reason)),
        Ok(None) => Err(too_much()),
        Err(_) => Err(refusal(StatusCode::REQUEST_TIMEOUT, "the reason did not come")),
    }
}

/// The whole body; `None` where it is too long, or breaks off.
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

/// As it can be logged.
fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    clean(&text).trim().to_owned()
}
