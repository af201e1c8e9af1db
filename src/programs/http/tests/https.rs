//! Tests of an endpoint with HTTPS.

use pushpull_identity::{Authority, Credentials, HttpsClient, JoinString};

use super::*;

/// An endpoint of the chief of a job with a join string.
struct Joined {
    endpoint: Endpoint,
    client: HttpsClient,
    token: String,
}

fn joined(token: Option<&str>) -> Joined {
    let authority = Authority::new().unwrap();
    let join: JoinString = authority.join().clone();
    let credentials = Some(Credentials::of_chief(authority, cluster(), TaskId::CHIEF).unwrap());
    let token = Token::read(None, token).unwrap();
    let config =
        EndpointConfig { address: Some("0.0.0.0:0".into()), token, credentials, ..Default::default() };
    let endpoint = Endpoint::bind(&config, About::default()).unwrap();
    let client = HttpsClient::new(&join).unwrap();
    Joined { endpoint, client, token: join.http_token() }
}

impl Joined {
    fn ask(&self, path: &str, token: &str) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        self.send(&format!("{head}Authorization: Bearer {token}\r\n\r\n"))
    }

    /// Sends a filled form.
    fn log_in(&self, token: &str) -> Answer {
        let body = format!("token={token}");
        let form = "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                    Content-Type: application/x-www-form-urlencoded\r\n";
        self.send(&format!("{form}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    fn send(&self, request: &str) -> Answer {
        let mut stream = self.client.connect("localhost", connect(&self.endpoint)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::read(bytes)
    }
}

#[test]
fn a_join_string_protects_an_endpoint() {
    let joined = joined(None);
    let listed = joined.endpoint.advertised().unwrap();
    assert!(listed.starts_with("https://"), "{listed}");
    assert_eq!(joined.ask("/config", &joined.token).status, 200);
    let refused = joined.ask("/config", "guess");
    assert!(refused.status == 401 && refused.body.contains("pushpull join token"), "{}", refused.body);
    assert_eq!(joined.ask("/healthz", "").status, 200, "probes need no token");
    let strangers = HttpsClient::new(Authority::new().unwrap().join()).unwrap();
    let refused = strangers.connect("localhost", connect(&joined.endpoint)).unwrap_err().to_string();
    assert!(refused.contains("another authority"), "{refused}");
    let entered = joined.log_in(&joined.token);
    let cookie = entered.header("set-cookie").unwrap();
    assert!(cookie.starts_with("__Host-") && cookie.contains("; Secure"), "{cookie}");
}

#[test]
fn what_is_not_encrypted_is_not_answered() {
    let joined = joined(None);
    let mut stream = connect(&joined.endpoint);
    let request = format!("GET /healthz HTTP/1.1\r\nAuthorization: Bearer {}\r\n\r\n", joined.token);
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(!String::from_utf8_lossy(&bytes).contains("HTTP/1.1"), "{bytes:?}");
}

/// A stranger who shares the address of the token's owner must not lock the owner out.
#[test]
fn guesses_never_stop_the_derived_token() {
    let joined = joined(None);
    guess_to_the_limit(|| joined.ask("/config", "guess"));
    assert_eq!(joined.ask("/config", &joined.token).status, 200);
    let entered = joined.log_in(&joined.token);
    assert!(entered.status == 303 && entered.header("set-cookie").is_some(), "{}", entered.head);
    guess_to_the_limit(|| joined.log_in("guess"));
}

#[test]
fn a_given_token_replaces_the_derived_one() {
    let joined = joined(Some("s3cret"));
    assert_eq!(joined.ask("/config", "s3cret").status, 200);
    assert_eq!(joined.ask("/config", &joined.token).status, 401);
}

#[test]
fn on_loopback_only_control_needs_the_derived_token() {
    let authority = Authority::new().unwrap();
    let token = authority.join().http_token();
    let credentials = Some(Credentials::of_chief(authority, cluster(), TaskId::CHIEF).unwrap());
    let config = EndpointConfig { address: Some("127.0.0.1:0".into()), credentials, ..Default::default() };
    let (endpoint, chief) = (Endpoint::bind(&config, About::default()).unwrap(), chief());
    endpoint.observers().lead(chief.view());
    assert_eq!(get(&endpoint, "/config").status, 200);
    assert_eq!(ask(&endpoint, "POST", "/stop", "Content-Length: 0\r\n").status, 401);
    let right = format!("Authorization: Bearer {token}\r\nContent-Length: 0\r\n");
    assert_eq!(ask(&endpoint, "POST", "/stop", &right).status, 202);
}

/// Opens many connections and begins no handshake on them. Checks that a client still gets its answer.
#[test]
fn stalled_handshakes_delay_no_client() {
    let joined = joined(None);
    let crowd = Crowd::at(&joined.endpoint);
    for _ in 0..10 {
        let began = Instant::now();
        assert_eq!(joined.ask("/healthz", "").status, 200);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
    crowd.leave();
}
