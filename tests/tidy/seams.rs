//! Checks that the code that the simulator runs starts threads and reads clocks only through its seams, and
//! that every `select!` has an order. Otherwise a simulation could not be repeated.

use crate::source::{code, is_word, words};
use crate::tree::{self, File, hold};

/// The rooms that the simulator runs. Kernels have neither clocks nor threads of their own.
const ROOMS: &[&str] = &["messages/", "ps/src/", "worker/", "chief/src/", "src/"];
/// Programs: people and other processes wait for them, and the simulator does not run them.
const PROGRAMS: &[&str] = &["src/programs/", "src/bin/"];
/// The one place of each room where threads are started.
const THREADS: &[&str] = &[
    "chief/src/threads.rs",
    "messages/identity/src/blocking.rs",
    "messages/storage/src/blocking.rs",
    "ps/src/threads.rs",
    "src/threads.rs",
    "worker/input/src/threads.rs",
    "worker/session/src/threads.rs",
    "worker/src/threads.rs",
];
/// The one place where clocks are read that are not tokio's.
const CLOCKS: &[&str] = &["messages/src/observe/time_source.rs"];

#[test]
fn threads_and_clocks_have_seams() {
    hold(
        "The simulator must be able to replace threads and clocks. Start a thread with the function in the room's file that \
         tests/tidy/seams.rs lists, measure times with `observe::now` and `observe::since`, read the time of day with \
         `observe::unix_time`, wait with tokio's clock, and begin each `select!` with `biased;`:",
        &without_seams(&tree::sources()),
    );
}

#[test]
fn a_direct_call_is_noticed() {
    let test = "#[cfg(test)]\nmod tests {\n    fn f() { std::thread::spawn(g); Instant::now(); }\n}\n";
    let std = "use std::time::{Duration, Instant};\n";
    let tokio = "use tokio::time::Instant;\n";
    let files = [
        File::new("ps/src/a.rs", &format!("{std}fn f() {{ Instant::now(); }}\n")),
        File::new("ps/src/b.rs", &format!("{std}fn f(x: Instant) {{ x.elapsed(); }}\n// Instant::now()\n")),
        File::new("ps/src/c.rs", &format!("{tokio}fn f() {{ Instant::now().elapsed(); }}\n")),
        File::new("chief/src/d.rs", "fn f() { std::time::Instant::now(); SystemTime::now(); }\n"),
        File::new(
            "worker/src/e.rs",
            &format!("fn f() {{ thread::Builder::new(); Arbiter::new(); }}\n{test}"),
        ),
        File::new(
            "messages/transport/src/f.rs",
            "fn f() {\n    tokio::task::spawn_blocking(g);\n    thread::sleep(x);\n}\n",
        ),
        File::new(
            "chief/src/g.rs",
            "tokio::select! {\n    biased;\n}\ntokio::select! {\n    // biased;\n    a => b,\n}\n",
        ),
        File::new("ps/src/threads.rs", "fn f() { Arbiter::new(); }\n"),
        File::new("src/programs/h.rs", "fn f() { SystemTime::now(); }\n"),
        File::new("worker/src/i/tests.rs", "fn f() { SystemTime::now(); }\n"),
    ];
    assert_eq!(
        without_seams(&files),
        [
            "ps/src/a.rs:2: Instant::now",
            "ps/src/b.rs:2: elapsed",
            "chief/src/d.rs:1: std::time::Instant::now",
            "chief/src/d.rs:1: SystemTime::now",
            "worker/src/e.rs:1: thread::Builder",
            "worker/src/e.rs:1: Arbiter::new",
            "messages/transport/src/f.rs:2: spawn_blocking",
            "messages/transport/src/f.rs:3: thread::sleep",
            "chief/src/g.rs:4: select! without biased",
        ]
    );
}

fn without_seams(files: &[File]) -> Vec<String> {
    let concerned = |file: &&File| {
        let is_in = |folders: &[&str]| folders.iter().any(|folder| file.path.starts_with(folder));
        let tests = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
        is_in(ROOMS) && !is_in(PROGRAMS) && !tests
    };
    let mut complaints = Vec::new();
    for file in files.iter().filter(concerned) {
        let code = code(&file.text);
        let code = without_tests(&code);
        let forbidden = forbidden(&file.path, code);
        let lines = code.lines().zip(1..);
        for (line, number) in lines {
            let found = forbidden.iter().filter(|call| calls(line, call));
            complaints.extend(found.map(|call| format!("{}:{number}: {call}", file.path)));
        }
        let selects = words(code).filter(|(_, word, after)| *word == "select" && after.starts_with('!'));
        for (number, ..) in selects {
            let rest: String = code.lines().skip(number - 1).take(8).collect();
            let body = rest.split_once("select!").map_or("", |(_, body)| body);
            if !body.trim_start().trim_start_matches('{').trim_start().starts_with("biased;") {
                complaints.push(format!("{}:{number}: select! without biased", file.path));
            }
        }
    }
    complaints
}

/// Returns the code before the tests at the end of a file.
fn without_tests(code: &str) -> &str {
    let tests = code.match_indices("#[cfg(test)]\n").find(|(at, found)| {
        let next = code[at + found.len()..].lines().next().unwrap_or_default();
        next.ends_with("mod tests {")
    });
    &code[..tests.map_or(code.len(), |(at, _)| at)]
}

/// Returns the calls that a file must not make.
fn forbidden(path: &str, code: &str) -> Vec<&'static str> {
    let mut calls = Vec::new();
    if !CLOCKS.contains(&path) {
        let imports = code.split(';').map(str::trim).filter(|item| item.starts_with("use std::time::"));
        if imports.flat_map(words).any(|(_, word, _)| word == "Instant") {
            calls.extend(["Instant::now", "elapsed"]);
        }
        calls.extend(["std::time::Instant::now", "SystemTime::now"]);
    }
    if !THREADS.contains(&path) {
        calls.extend(["thread::spawn", "thread::Builder", "Arbiter::new", "spawn_blocking"]);
    }
    calls.push("thread::sleep");
    calls
}

/// Returns whether a line contains a path that ends with `call`. A longer call that contains a shorter one is
/// reported once.
fn calls(line: &str, call: &str) -> bool {
    line.match_indices(call).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + call.len()..]);
        let whole = !after.starts_with(is_word) && !before.ends_with(is_word);
        match call {
            // A call, and not the definition of a function.
            "elapsed" => whole && before.ends_with('.') && after.starts_with('('),
            "Instant::now" => whole && !before.ends_with("time::"),
            _ => whole,
        }
    })
}
