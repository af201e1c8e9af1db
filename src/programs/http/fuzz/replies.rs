//! What a client has got, and what every answer must be: bounded, and with headers that the endpoint has
//! chosen.

/// The largest number of bytes of an answer, and of one with events.
const BYTES_MAX: usize = 1 << 20;
/// The headers of answers.
const HEADERS: [&str; 14] = [
    "allow",
    "cache-control",
    "connection",
    "content-length",
    "content-security-policy",
    "content-type",
    "date",
    "location",
    "referrer-policy",
    "retry-after",
    "set-cookie",
    "transfer-encoding",
    "www-authenticate",
    "x-content-type-options",
];
/// What a server says before the answer to a client that waits for it.
const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// An answer.
pub(super) struct Reply<'a> {
    pub status: u16,
    pub head: &'a str,
    pub body: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Returns the answers in these bytes. Those of `HEAD` requests have no body.
    pub fn all(mut bytes: &'a [u8]) -> Vec<Self> {
        assert!(bytes.len() <= BYTES_MAX, "(F) answers of {} bytes", bytes.len());
        let mut all: Vec<Self> = Vec::new();
        loop {
            bytes = bytes.strip_prefix(GO_ON.as_bytes()).unwrap_or(bytes);
            if bytes.is_empty() {
                return all;
            }
            let mut reply = Self::of(bytes);
            let length = reply.header("content-length").map(|length| length.parse().expect("a number"));
            let has_none = reply.body.is_empty() || reply.body.starts_with(b"HTTP/1.") || reply.status == 204;
            let length = if has_none { 0 } else { length.unwrap_or(reply.body.len()) };
            (reply.body, bytes) = reply.body.split_at_checked(length).expect("an answer has a whole body");
            all.push(reply);
        }
    }

    fn of(bytes: &'a [u8]) -> Self {
        let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").expect("an answer has a whole head");
        let head = std::str::from_utf8(&bytes[..end]).expect("(E) a head is text");
        let status = head.strip_prefix("HTTP/1.1 ").or_else(|| head.strip_prefix("HTTP/1.0 "));
        let status = status.and_then(|status| status.get(..3)?.parse().ok());
        let reply = Self { status: status.expect("an answer has a status"), head, body: &bytes[end + 4..] };
        reply.check();
        reply
    }

    fn check(&self) {
        for line in self.head.split("\r\n") {
            assert!(line.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "(E) a header {line:?}");
        }
        for line in self.head.split("\r\n").skip(1) {
            let (name, _) = line.split_once(": ").expect("a header has a name");
            let name = name.to_ascii_lowercase();
            assert!(HEADERS.contains(&&*name), "(E) a header that no answer has: {line:?}");
        }
    }

    /// Returns the value of the first header with this name, which is in lower case.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let lines = self.head.split("\r\n").filter_map(|line| line.split_once(": "));
        lines.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
