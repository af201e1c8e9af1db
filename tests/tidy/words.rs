//! Checks that files do not use banned words. Some words are banned in all files, others only in some.

use crate::source::{code, is_word, words};
use crate::tree::{self, File, hold};

/// Paths of state machines and planners. Their results must not depend on the order of a hash map.
const CORE: &[&str] = &[
    "ps/src/sync",
    "ps/src/shard",
    "chief/src/placement",
    "chief/src/job",
    "worker/engine/src",
    "messages/src/graph",
];
/// Paths of state machines. They are called by actors, and must not depend on actors themselves.
const STATE_MACHINES: &[&str] = &["ps/src/sync", "ps/src/shard", "chief/src/job", "chief/src/placement"];
/// Paths of the code that handles gradients and values.
const DATA_PATH: &[&str] = &["ps/src"];

#[test]
fn nothing_is_left_to_do() {
    hold(
        "Finish the code, return an error, or delete it. Do not add a test that cannot run yet:",
        &unfinished(&tree::sources()),
    );
}

#[test]
fn unfinished_code_is_noticed() {
    let text = "fn a() { todo!() }\nfn todo() {}\nfn b() { unimplemented!(\"x\") }\n#[test]\n#[ignore = \"slow\"]\n\
                fn c() { std::dbg!(1); }\n// todo!\n#[cfg_attr(debug_assertions, ignore)]\nlet ignore = 1;";
    let bad = [File::new("a.rs", text)];
    assert_eq!(
        unfinished(&bad),
        ["a.rs:1: todo!", "a.rs:3: unimplemented!", "a.rs:5: #[ignore]", "a.rs:6: dbg!", "a.rs:8: #[ignore]"]
    );
}

#[test]
fn core_files_hold_no_hash_map() {
    hold(
        "A core file gives the same answer on every run: use BTreeMap, BTreeSet or a Vec in a known order:",
        &in_places(&tree::sources(), CORE, &[], is_hashed),
    );
}

#[test]
fn a_hash_map_in_a_core_file_is_noticed() {
    let text =
        "use std::collections::HashMap; // HashSet\nlet x: std::collections::HashSet<u32>;\nBTreeMap::new();";
    let bad = [File::new("ps/src/sync/x.rs", text), File::new("ps/src/ps.rs", text)];
    assert_eq!(
        in_places(&bad, &["ps/src/sync"], &[], is_hashed),
        ["ps/src/sync/x.rs:1: HashMap", "ps/src/sync/x.rs:2: HashSet"]
    );
}

#[test]
fn the_data_path_waits_for_room() {
    hold(
        "`do_send` ignores a mailbox's capacity. On the data path, take a credit, and use a method that fails if the \
         mailbox is full:",
        &in_places(&tree::sources(), DATA_PATH, &[], is_do_send),
    );
}

#[test]
fn a_do_send_on_the_data_path_is_noticed() {
    let text = "shard.do_send(push);\n// do_send\nshard.try_send(push);";
    let bad = [File::new("ps/src/ps.rs", text), File::new("chief/src/chief.rs", text)];
    assert_eq!(in_places(&bad, DATA_PATH, &[], is_do_send), ["ps/src/ps.rs:1: do_send"]);
}

#[test]
fn state_machines_know_no_actor() {
    hold(
        "A state machine is a plain struct. Take the request as an argument, return the outcome, and keep the mailbox in \
         the actor's own file:",
        &in_places(&tree::sources(), STATE_MACHINES, &[], is_actix),
    );
}

#[test]
fn an_actor_in_a_state_machine_is_noticed() {
    let text = "use actix::Addr;\nlet x = actix_rt::System::new();\n// actix\nuse transactix;";
    let bad = [File::new("ps/src/shard/state.rs", text), File::new("ps/src/shard/actor.rs", text)];
    assert_eq!(
        in_places(&bad, &["ps/src/shard"], &["ps/src/shard/actor.rs"], is_actix),
        ["ps/src/shard/state.rs:1: actix", "ps/src/shard/state.rs:2: actix_rt"]
    );
}

#[test]
fn a_rule_about_no_file_is_noticed() {
    let nothing = in_places(&[], &["ps/src/sync"], &["ps/src/shard/actor.rs"], is_actix);
    assert_eq!(
        nothing,
        [
            "ps/src/sync: no such file; update the path in tests/tidy/words.rs",
            "ps/src/shard/actor.rs: no such file; update the path in tests/tidy/words.rs",
        ]
    );
}

fn is_hashed(word: &str) -> bool {
    ["HashMap", "HashSet", "DashMap", "DashSet"].iter().any(|end| word.ends_with(end))
}

fn is_do_send(word: &str) -> bool {
    word == "do_send"
}

fn is_actix(word: &str) -> bool {
    word == "actix" || word.starts_with("actix_")
}

/// Returns the banned words in the files under `places`, except the files in `except`.
fn in_places(files: &[File], places: &[&str], except: &[&str], banned: fn(&str) -> bool) -> Vec<String> {
    let mut complaints = Vec::new();
    for place in places.iter().chain(except) {
        if tree::under(files, place).next().is_none() {
            complaints.push(format!("{place}: no such file; update the path in tests/tidy/words.rs"));
        }
    }
    let files = places.iter().flat_map(|place| tree::under(files, place));
    for file in files.filter(|file| !except.contains(&file.path.as_str())) {
        let code = code(&file.text);
        let found = words(&code).filter(|(_, word, _)| banned(word));
        complaints.extend(found.map(|(line, word, _)| format!("{}:{line}: {word}", file.path)));
    }
    complaints
}

fn unfinished(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        let code = code(&file.text);
        for (index, line) in code.lines().enumerate() {
            for (_, word, after) in words(line) {
                let is_macro = after.starts_with('!') && !after.starts_with("!=");
                let found = match word {
                    "todo" | "unimplemented" | "dbg" if is_macro => format!("{word}!"),
                    "ignore" if is_attribute(line) => "#[ignore]".to_owned(),
                    _ => continue,
                };
                complaints.push(format!("{}:{}: {found}", file.path, index + 1));
            }
        }
    }
    complaints
}

/// Returns true if a line begins with `#[ignore` or `#[cfg_attr`.
fn is_attribute(line: &str) -> bool {
    let Some(attribute) = line.trim_start().strip_prefix("#[") else { return false };
    let name = attribute.split(|c| !is_word(c)).next();
    matches!(name, Some("ignore" | "cfg_attr"))
}
