//! The files of the chief's page, which are compiled into the program.

use actix_web::HttpResponse;
use actix_web::web::Bytes;

use crate::programs::http::body::shared;

/// Answers with the page itself.
pub(super) fn index() -> HttpResponse {
    file("text/html; charset=utf-8", include_str!("index.html"))
}

/// Answers with the page's style sheet.
pub(super) fn css() -> HttpResponse {
    file("text/css; charset=utf-8", include_str!("page.css"))
}

/// Answers with the page's script.
pub(super) fn js() -> HttpResponse {
    file("text/javascript; charset=utf-8", include_str!("page.js"))
}

fn file(kind: &str, text: &'static str) -> HttpResponse {
    shared(kind, Bytes::from_static(text.as_bytes()))
}
