//! Tells which requests were made by a page of the endpoint itself. A browser sends the cookie of a session
//! also with some requests of other pages of the same site, which must not save or stop the job.

use actix_web::http::header::{self, HeaderMap};

/// The header in which a browser says where a request comes from. A page cannot set it.
const FETCH_SITE: &str = "sec-fetch-site";

/// Returns true if the browser says that a page of this endpoint has made the request.
pub(super) fn is_own(headers: &HeaderMap) -> bool {
    let one = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if headers.contains_key(FETCH_SITE) {
        return one(FETCH_SITE) == Some("same-origin");
    }
    // Browsers send that header only over HTTPS and to loopback.
    let origin = one(header::ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
    let host = one(header::HOST.as_str());
    origin.zip(host).is_some_and(|((_, origin), host)| origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_pages_of_the_endpoint_are_its_own() {
        for (headers, own) in [
            (&[("sec-fetch-site", "same-origin")][..], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("origin", "http://h:80"), ("host", "h:80")], true),
            (&[("origin", "https://H:80"), ("host", "h:80")], true),
            (&[("origin", "http://h:80"), ("host", "h:80"), ("sec-fetch-site", "same-site")], false),
            (&[("origin", "http://h:81"), ("host", "h:80")], false),
            (&[("origin", "http://other"), ("host", "h:80")], false),
            (&[("origin", "null"), ("host", "null")], false),
            (&[("host", "h:80")], false),
            (&[], false),
        ] {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            assert_eq!(is_own(&map), own, "{headers:?}");
        }
    }
}
