//! The answers that are not a file: JSON, refusals, plain words. Knows no route.

use actix_web::HttpResponse;
use actix_web::http::header::{self, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::web::Bytes;

use super::body::shared;

/// Answers 200 with JSON.
pub(super) fn told(json: Bytes) -> HttpResponse {
    shared("application/json", json)
}

/// Says why a request is refused.
pub(super) fn refusal(status: StatusCode, reason: &str) -> HttpResponse {
    HttpResponse::build(status).json(serde_json::json!({ "error": reason }))
}

/// Answers 405, with the method that is right.
pub(super) fn wrong_method(right: &Method) -> HttpResponse {
    let mut answer = refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("only {right} is answered here"));
    let right = HeaderValue::from_str(right.as_str()).expect("a method is a header's value");
    answer.headers_mut().insert(header::ALLOW, right);
    answer
}
