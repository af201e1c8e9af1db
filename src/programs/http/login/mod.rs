//! The form in which a browser's user enters the token. This module must not depend on sessions.

use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::{Bytes, Form};
use actix_web::{FromRequest, HttpRequest, HttpResponse};
use serde::Deserialize;
use tokio::time::timeout;

use super::access::Access;
use super::answers::refusal;
use super::body::shared;

/// The time limit for a form to arrive.
const FORM_TIMEOUT: Duration = Duration::from_secs(3);
/// The place in the form for a message.
const MESSAGE: &str = "<!--message-->";

/// The form that a browser sends.
#[derive(Deserialize)]
struct Entered {
    token: String,
}

/// Returns true when a browser waits for a page, and not a program for data.
pub(super) fn wants_page(request: &HttpRequest) -> bool {
    let accepted = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|kinds| kinds.split([',', ';']).any(|kind| kind.trim() == "text/html"))
}

/// Makes the response with the form out of one that refuses a request. It has the same status and headers.
pub(super) fn form(refused: HttpResponse) -> HttpResponse {
    let message = match refused.status() {
        StatusCode::TOO_MANY_REQUESTS => "Too many wrong tokens. Try again later.",
        StatusCode::UNAUTHORIZED => "",
        _ => return refused,
    };
    page(refused, message)
}

fn page(refused: HttpResponse, message: &str) -> HttpResponse {
    let text = include_str!("login.html").replace(MESSAGE, message);
    let mut answer = refused.map_into_boxed_body().set_body(actix_web::body::BoxBody::new(text));
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// Answers with the style sheet of the form.
pub(super) fn css() -> HttpResponse {
    shared("text/css; charset=utf-8", Bytes::from_static(include_bytes!("login.css")))
}

/// Answers a request that contains a filled form: begins a session, and leads to the page.
pub(super) async fn enter(request: &HttpRequest, body: &mut Payload, access: &Access) -> HttpResponse {
    if let Err(refused) = access.check_form(request) {
        return *refused;
    }
    let entered = match timeout(FORM_TIMEOUT, Form::<Entered>::from_request(request, body)).await {
        Ok(Ok(Form(entered))) => entered,
        Ok(Err(_)) => {
            let reason = "the form cannot be read, expected 'token=TOKEN'";
            return refusal(StatusCode::BAD_REQUEST, reason);
        }
        Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the form did not arrive in time"),
    };
    match access.log_in(request, entered.token.trim().as_bytes()) {
        Ok(cookie) => {
            let mut answer = to_page();
            answer.headers_mut().insert(header::SET_COOKIE, cookie);
            answer
        }
        Err(refused) if refused.status() == StatusCode::UNAUTHORIZED && wants_page(request) => {
            page(*refused, "This token is wrong.")
        }
        Err(refused) if wants_page(request) => form(*refused),
        Err(refused) => *refused,
    }
}

/// Answers with the address of the page, which a browser then opens.
pub(super) fn to_page() -> HttpResponse {
    HttpResponse::SeeOther().insert_header((header::LOCATION, "./")).finish()
}
