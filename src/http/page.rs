//! The chief's page as it is handed out: files that are part of the program.

use actix_web::HttpResponse;
use actix_web::web::Bytes;

use super::body::shared;

/// The page itself.
pub(super) fn index() -> HttpResponse {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// How it looks.
pub(super) fn css() -> HttpResponse {
    file("text/css; charset=utf-8", include_str!("page/page.css"))
}

/// What it does.
pub(super) fn js() -> HttpResponse {
    file("text/javascript; charset=utf-8", include_str!("page/page.js"))
}

fn file(kind: &str, text: &'static str) -> HttpResponse {
    shared(kind, Bytes::from_static(text.as_bytes()))
}
