//! Makes responses that are not files: JSON, refusals and plain text. This module must not depend on routes.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::Bytes;

use super::body::shared;

/// Makes a response with status 200 and a JSON body.
pub(super) fn told(json: Bytes) -> HttpResponse {
    shared("application/json", json)
}

/// Makes a response that refuses a request, with a status and with the reason as JSON.
pub(super) fn refusal(status: StatusCode, reason: &str) -> HttpResponse {
    HttpResponse::build(status).json(serde_json::json!({ "error": reason }))
}

/// Makes a response with status 405 that names the methods which the path accepts, with commas between them.
pub(super) fn wrong_method(right: &'static str) -> HttpResponse {
    let mut answer =
        refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("the method is not allowed, expected {right}"));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(right));
    answer
}
