//! The cookie with the id of a session. This module must not depend on sessions.

use actix_web::http::header::{self, HeaderMap};

use super::sessions::LIFE;

/// The maximum number of cookies of the right name that are looked at. Another site of the same host can set
/// cookies, too.
const COOKIES_MAX: usize = 8;

/// The cookie of one endpoint.
pub(super) struct Cookie {
    name: String,
    is_secure: bool,
}

impl Cookie {
    /// Makes the cookie of the endpoint at this port. The endpoints of a host share its cookies, so each has
    /// a name of its own. With `is_secure`, browsers send it over HTTPS only.
    pub(super) fn new(port: u16, is_secure: bool) -> Self {
        // Browsers accept a cookie of this prefix only from the host itself, over HTTPS.
        let prefix = if is_secure { "__Host-" } else { "" };
        Self { name: format!("{prefix}pushpull-{port}"), is_secure }
    }

    /// Returns the header that gives a browser the id of its session.
    pub(super) fn set(&self, id: &str) -> String {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let (name, seconds) = (&self.name, LIFE.as_secs());
        format!("{name}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}")
    }

    /// Returns the ids that a request sends.
    pub(super) fn ids<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let sent = headers.get_all(header::COOKIE).filter_map(|cookies| cookies.to_str().ok());
        let pairs = sent.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| name.trim() == self.name).map(|(_, id)| id.trim()).take(COOKIES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    fn ids(cookie: &Cookie, sent: &[&str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for sent in sent {
            headers.append(header::COOKIE, HeaderValue::from_str(sent).unwrap());
        }
        cookie.ids(&headers).map(str::to_owned).collect()
    }

    #[test]
    fn only_cookies_of_its_name_are_read() {
        let cookie = Cookie::new(80, false);
        assert_eq!(ids(&cookie, &[]), [""; 0]);
        assert_eq!(ids(&cookie, &["a=1; pushpull-80=x; pushpull-81=y", "pushpull-80=z"]), ["x", "z"]);
        assert_eq!(ids(&cookie, &["pushpull-80", "=", "xpushpull-80=1", "pushpull-80=a=b"]), ["a=b"]);
        assert_eq!(ids(&cookie, &["pushpull-80=1;".repeat(99).as_str()]).len(), COOKIES_MAX);
    }

    #[test]
    fn scripts_and_other_sites_do_not_get_it() {
        for is_secure in [false, true] {
            let cookie = Cookie::new(80, is_secure).set("id");
            for word in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
                assert!(cookie.contains(&format!("; {word}")), "{cookie}");
            }
            assert_eq!(cookie.ends_with("; Secure"), is_secure, "{cookie}");
            assert_eq!(cookie.starts_with("__Host-"), is_secure, "{cookie}");
        }
    }
}
