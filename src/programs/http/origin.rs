//! Tells which requests were made by a page of the endpoint itself. A browser sends the cookie of a session
//! also with some requests of other pages of the same site, which must not save or stop the job. It sends a
//! form of any page, which must not use up the attempts of its user.

use actix_web::http::header::{self, HeaderMap};

/// The header in which a browser says where a request comes from. A page cannot set it.
const FETCH_SITE: &str = "sec-fetch-site";

/// What the headers of a request say about the page that has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A page of this endpoint has made the request.
    Own,
    /// A page of another origin has made it, or a user without a page.
    Other,
    /// The headers do not say it, so the client is probably no browser.
    Unknown,
}

impl Origin {
    /// Returns the origin of a request to an endpoint whose URL has this scheme.
    pub(super) fn of(headers: &HeaderMap, scheme: &str) -> Self {
        let one = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_own = if headers.contains_key(FETCH_SITE) {
            one(FETCH_SITE) == Some("same-origin")
        } else if headers.contains_key(header::ORIGIN) {
            // Browsers send the other header only over HTTPS and to loopback.
            let origin = one(header::ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
            origin.zip(one(header::HOST.as_str())).is_some_and(|((own, origin), host)| {
                own.eq_ignore_ascii_case(scheme) && origin.eq_ignore_ascii_case(host)
            })
        } else {
            return Self::Unknown;
        };
        if is_own { Self::Own } else { Self::Other }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_pages_of_the_endpoint_are_its_own() {
        use Origin::{Other, Own, Unknown};
        for (headers, expected) in [
            (&[("sec-fetch-site", "same-origin")][..], Own),
            (&[("sec-fetch-site", "same-site")], Other),
            (&[("sec-fetch-site", "cross-site")], Other),
            (&[("sec-fetch-site", "none")], Other),
            (&[("origin", "http://h:80"), ("host", "h:80")], Own),
            (&[("origin", "HTTP://H:80"), ("host", "h:80")], Own),
            (&[("origin", "https://h:80"), ("host", "h:80")], Other),
            (&[("origin", "http://h:80"), ("host", "h:80"), ("sec-fetch-site", "same-site")], Other),
            (&[("origin", "http://h:81"), ("host", "h:80")], Other),
            (&[("origin", "http://other"), ("host", "h:80")], Other),
            (&[("origin", "http://h:80")], Other),
            (&[("origin", "null"), ("host", "null")], Other),
            (&[("host", "h:80")], Unknown),
            (&[], Unknown),
        ] {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            assert_eq!(Origin::of(&map, "http"), expected, "{headers:?}");
        }
    }
}
