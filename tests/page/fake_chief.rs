//! A simulated chief on loopback, which serves the page's files, prepared responses, and events.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use pushpull_messages::observe::{ChiefSnapshot, CurvePoint, PlacementRow};
use serde_json::{Value, json};

const TELL_EVERY: Duration = Duration::from_millis(100);
/// The content security policy in every response.
const POLICY: &str = include_str!("../../src/programs/http/page/policy.txt").trim_ascii_end();
pub(crate) const TOKEN: &str = "s3cret";
/// The cookie of a browser that has sent the token.
const SESSION: &str = "session=of-a-browser";

/// The data that the simulated chief serves, and its state.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) job: ChiefSnapshot,
    pub(crate) curves: Vec<CurvePoint>,
    pub(crate) placement: Vec<PlacementRow>,
    pub(crate) log: Vec<Value>,
    /// If true, the chief does not answer requests for data, and ends the connections for events.
    pub(crate) away: bool,
    /// If true, the job has ended, and the events end with `end`.
    pub(crate) over: bool,
    /// The paths of the requests to save or stop that were made.
    pub(crate) wishes: Vec<String>,
    /// If true, the server thread ends at the next connection.
    pub(crate) gone: bool,
}

/// A simulated chief. It ends when it is dropped.
pub(crate) struct Chief {
    address: SocketAddr,
    told: Arc<Mutex<Told>>,
    server: Option<JoinHandle<()>>,
}

impl Chief {
    pub(crate) fn telling(told: Told) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let told = Arc::new(Mutex::new(told));
        let of_server = Arc::clone(&told);
        let server = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let told = Arc::clone(&of_server);
                if told.lock().expect("nobody has panicked").gone {
                    break;
                }
                let stream = stream.expect("a connection");
                std::thread::spawn(move || drop(answer(&stream, &told)));
            }
        });
        Self { address, told, server: Some(server) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Changes the data for all later responses.
    pub(crate) fn tell<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        change(&mut self.told.lock().expect("nobody has panicked"))
    }
}

impl Drop for Chief {
    fn drop(&mut self) {
        if let Ok(mut told) = self.told.lock() {
            (told.gone, told.away) = (true, true);
        }
        // This connection wakes the server thread, so that it ends.
        let _ = TcpStream::connect(self.address);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn answer(stream: &TcpStream, told: &Mutex<Told>) -> std::io::Result<()> {
    let (mut reader, mut request) = (BufReader::new(stream), String::new());
    reader.read_line(&mut request)?;
    let (mut has_session, mut body_bytes) = (false, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        has_session |= line == format!("cookie: {SESSION}");
        body_bytes = line.strip_prefix("content-length: ").map_or(body_bytes, |n| n.parse().unwrap_or(0));
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; body_bytes];
    reader.read_exact(&mut body)?;
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let asked = |name: &str| {
        let told = told.lock().expect("nobody has panicked");
        match name {
            "/curves" => json!(told.curves),
            "/log" => json!(told.log),
            _ => json!(told.placement),
        }
    };
    let page = |name: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/programs/http/page/");
        std::fs::read_to_string(format!("{folder}{name}")).expect("a file of the page")
    };
    let away = || told.lock().expect("nobody has panicked").away;
    match (method, path) {
        ("GET", "/") => reply(stream, "200 OK", "text/html; charset=utf-8", &page("index.html")),
        ("GET", "/page.css") => reply(stream, "200 OK", "text/css; charset=utf-8", &page("page.css")),
        ("GET", "/page.js") => reply(stream, "200 OK", "text/javascript; charset=utf-8", &page("page.js")),
        ("GET", "/favicon.ico") => reply(stream, "204 No Content", "image/x-icon", ""),
        _ if away() => Ok(()),
        ("GET", "/events") => events(stream, told),
        ("GET", "/curves" | "/log" | "/placement") => {
            reply(stream, "200 OK", "application/json", &asked(path).to_string())
        }
        ("POST", "/login") if body == format!("token={TOKEN}").as_bytes() => {
            let cookie = format!("Set-Cookie: {SESSION}; HttpOnly; SameSite=Strict; Path=/\r\nLocation: ./");
            reply(stream, &format!("303 See Other\r\n{cookie}"), "text/plain", "")
        }
        ("POST", "/save" | "/stop") if has_session => {
            told.lock().expect("nobody has panicked").wishes.push(path.to_owned());
            reply(stream, "202 Accepted", "application/json", r#"{"wished":true}"#)
        }
        ("POST", _) => reply(stream, "401 Unauthorized", "application/json", r#"{"error":"no"}"#),
        _ => reply(stream, "404 Not Found", "text/plain", "nothing"),
    }
}

fn reply(mut stream: &TcpStream, status: &str, kind: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nContent-Security-Policy: {POLICY}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn events(mut stream: &TcpStream, told: &Mutex<Told>) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")?;
    let mut told_last = None;
    loop {
        let (job, point, away, over) = {
            let told = told.lock().expect("nobody has panicked");
            (json!(told.job), told.curves.last().cloned(), told.away, told.over)
        };
        if away {
            return Ok(());
        }
        let mut text = format!("event: job\ndata: {job}\n\n");
        if let Some(point) = point.filter(|point| told_last != Some(point.at_ms)) {
            told_last = Some(point.at_ms);
            text += &format!("event: point\ndata: {}\n\n", json!(point));
        }
        if over {
            text += &format!("event: end\ndata: {job}\n\n");
        }
        stream.write_all(text.as_bytes())?;
        if over {
            return Ok(());
        }
        std::thread::sleep(TELL_EVERY);
    }
}
