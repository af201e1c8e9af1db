//! A headless Chromium for tests of pages, controlled through two pipes with the DevTools protocol. It has a
//! profile of its own. Every wait has a time limit, and the browser never outlives its test. This module
//! must not depend on our pages.

#![allow(dead_code, reason = "a test uses what it needs")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome"];
/// The time limit for the first start of a browser on a busy machine.
const START: Duration = Duration::from_secs(60);
/// The time limit for an answer of a running browser.
const ANSWER: Duration = Duration::from_secs(30);
/// The time between two polls of a page.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    orders: File,
    answers: Receiver<Value>,
    last_id: u64,
    session: String,
    /// The errors of the page: errors in scripts, violations of its policy, and resources that could not be
    /// loaded.
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts an installed browser. If no browser is installed, says so on stderr and returns `None`.
    ///
    /// # Panics
    /// Panics if an installed browser cannot be started.
    pub(crate) fn find(test: &str) -> Option<Self> {
        let Some(program) = installed() else {
            let names = NAMES.join(", ");
            eprintln!(
                "!!! SKIPPED: {test} is NOT tested, because no browser is installed, expected one of {names} !!!"
            );
            return None;
        };
        Some(Self::start(&program))
    }

    fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let (orders_theirs, orders) = pipe();
        let (answers, answers_theirs) = pipe();
        let mut command = Command::new(program);
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-extensions", "--disable-background-networking", "--hide-scrollbars"])
            .arg("--remote-debugging-pipe")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The browser has many processes, which are killed together.
            .process_group(0);
        let mappings = vec![
            FdMapping { parent_fd: orders_theirs, child_fd: 3 },
            FdMapping { parent_fd: answers_theirs, child_fd: 4 },
        ];
        command.fd_mappings(mappings).expect("two numbers that differ");
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        // This closes our copies of the browser's ends of the pipes. Otherwise we would not notice the end
        // of the browser.
        drop(command);
        let mut browser = Self {
            child,
            orders: orders.into(),
            answers: listen(answers.into()),
            last_id: 0,
            session: String::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let page = browser.call_within("Target.createTarget", json!({ "url": "about:blank" }), START);
        let target = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", target);
        browser.session = attached["sessionId"].as_str().expect("a session has a name").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Loads a page.
    ///
    /// # Panics
    /// Panics if the page cannot be loaded.
    pub(crate) fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert_eq!(answer["errorText"], Value::Null, "cannot open {url}");
    }

    /// Returns the value of an expression. If it is a promise, waits for its result.
    ///
    /// # Panics
    /// Panics if the expression throws.
    pub(crate) fn evaluate(&mut self, script: &str) -> Value {
        let mut answer = self.ask(script);
        assert_eq!(answer["exceptionDetails"], Value::Null, "{script} throws");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true. The expression may throw before that, for example while the page
    /// is not loaded yet.
    ///
    /// # Panics
    /// Panics if the expression does not become true in time; the message contains its last value.
    pub(crate) fn wait_for(&mut self, script: &str, within: Duration) {
        let begun = Instant::now();
        loop {
            let answer = self.ask(script);
            if answer["result"]["value"] == true {
                return;
            }
            let complaints = &self.complaints;
            assert!(
                begun.elapsed() < within,
                "{script} is not true within {within:?} but {answer}; the page complains of {complaints:?}"
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Resizes the page, in CSS pixels.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the preferred colour scheme, dark or light.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
    }

    /// Writes a screenshot as PNG, of the whole page if requested.
    pub(crate) fn screenshot(&mut self, path: &Path, whole: bool) {
        let answer =
            self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": whole }));
        let png = decode_base64(answer["data"].as_str().expect("a screenshot is text"));
        std::fs::write(path, png).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Returns the errors of the page so far: errors in scripts, violations of its policy, and resources
    /// that could not be loaded.
    pub(crate) fn complaints(&mut self) -> &[String] {
        // Earlier events of the page arrive before the answer to this request.
        self.ask("0");
        &self.complaints
    }

    fn ask(&mut self, script: &str) -> Value {
        let order = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        self.call("Runtime.evaluate", order)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.call_within(method, params, ANSWER)
    }

    fn call_within(&mut self, method: &str, params: Value, within: Duration) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut order = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            order["sessionId"] = json!(self.session);
        }
        let written = self.orders.write_all(format!("{order}\0").as_bytes());
        written.unwrap_or_else(|error| panic!("the browser takes no '{method}': {error}"));
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = self.answers.recv_timeout(left);
            let mut message = message.unwrap_or_else(|error| panic!("no answer to '{method}': {error}"));
            if message["id"] == id {
                assert_eq!(message["error"], Value::Null, "'{method}' is refused");
                return message["result"].take();
            }
            self.hear(&message);
        }
    }

    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &params["exceptionDetails"],
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => &params["args"],
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => &params["entry"],
            _ => return,
        };
        self.complaints.push(complaint.to_string());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let places = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    places.into_iter().find(|place| place.is_file())
}

/// Makes a pipe, and returns its reading end and its writing end.
fn pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = std::io::pipe().expect("a pipe");
    (read.into(), write.into())
}

/// Returns a receiver of all messages of the browser, until the browser closes its end.
fn listen(answers: File) -> Receiver<Value> {
    let (heard, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut messages = BufReader::new(answers).split(0);
        while let Some(Ok(message)) = messages.next() {
            let message = serde_json::from_slice(&message).expect("the browser speaks JSON");
            if heard.send(message).is_err() {
                break;
            }
        }
    });
    receiver
}

fn decode_base64(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("'{}' is not base64", char::from(other)),
    };
    let letters: Vec<u8> = text.bytes().filter(|&letter| letter != b'=').map(value).collect();
    let bytes = letters.chunks(4).flat_map(|four| {
        let bits =
            four.iter().enumerate().fold(0u32, |bits, (at, &six)| bits | u32::from(six) << (18 - 6 * at));
        bits.to_be_bytes().into_iter().skip(1).take(four.len() - 1)
    });
    bytes.collect()
}

#[test]
fn base64_is_decoded() {
    for (text, expected) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")]
    {
        assert_eq!(decode_base64(text), expected.as_bytes());
    }
    assert_eq!(decode_base64("+/8A"), [0xfb, 0xff, 0x00]);
}
