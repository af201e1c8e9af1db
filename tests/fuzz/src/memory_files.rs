//! The target `memory_files`: uploads, reads and deletions of the files in a ps task's memory, compared with
//! a plain model. Wanted properties: (A) the files never take more than their limit, nor are there too many;
//! (B) a file has the bytes that were sent; (C) what is deleted frees what it took.

use std::collections::BTreeMap;

use bytes::Bytes;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::FILES_KEPT_MAX;
use pushpull_storage::{MemoryFiles, Uploader};

use crate::corpus::Form;
use crate::script::Script;
use crate::target::{Class, Target, check_error};

/// The largest number of bytes of all files.
const BYTES_MAX: u64 = 1 << 14;
const NAMES: [&str; 5] = ["a", "b", "s/a", "s/b", "t/a"];

pub(crate) const TARGET: Target = Target {
    name: "memory_files",
    class: Class::State,
    about: &["messages/storage/src/memory/files.rs"],
    check,
    stages: &["nothing kept", "an upload", "a file"],
    form: Form::Script,
    content: |_| 0,
    ..Target::USUAL
};

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let (mut script, mut task) = (Script::new(bytes), Task::new());
    while !script.is_over() {
        let name = script.choose(&NAMES);
        match script.below(8) {
            0 => task.put(name, &mut script),
            1 => {
                task.files.delete(name);
                task.known.remove(name);
            }
            2 => {
                let range = script.about(0)..script.about(30);
                check_range(&task.files, &task.known, name, range);
            }
            3 => task.list(script.choose(&["", "s", "t", "a", "s/a"])),
            _ => task.upload(name, &mut script),
        }
        assert!(task.files.taken() <= BYTES_MAX, "(A)");
        assert!(task.known.len() <= FILES_KEPT_MAX, "(A)");
    }
    NAMES.iter().for_each(|name| task.files.delete(name));
    assert!(task.files.list("").is_empty(), "(C)");
    task.reached
}

/// What a task has sent of a file: the upload, the name, the number of bytes of the file, and the bytes that
/// were accepted from the start.
type Sent = (u64, &'static str, u64, Vec<u8>);

/// The files of a task, and what they should be.
struct Task {
    files: MemoryFiles,
    known: BTreeMap<&'static str, Vec<u8>>,
    /// For each other task, its unfinished upload.
    sent: BTreeMap<u32, Sent>,
    reached: usize,
}

impl Task {
    const fn new() -> Self {
        let files = MemoryFiles::new(BYTES_MAX);
        Self { files, known: BTreeMap::new(), sent: BTreeMap::new(), reached: 0 }
    }

    fn put(&mut self, name: &'static str, script: &mut Script<'_>) {
        let content = vec![script.byte(); script.about(40).min(1 << 15) as usize];
        let (one, other) = content.split_at(content.len() / 2);
        match self.files.put(name, [one, other].map(Bytes::copy_from_slice)) {
            Ok(()) => drop(self.known.insert(name, content)),
            Err(error) => check_error(&error),
        }
    }

    fn list(&self, folder: &str) {
        let found = self.files.list(folder);
        for (name, bytes) in &found {
            assert!(self.known.get(&name[..]).is_some_and(|own| own.len() as u64 == *bytes), "(B)");
        }
        assert!(!folder.is_empty() || found.len() == self.known.len(), "(B) all files are listed");
    }

    /// Lets another task send a piece of a file.
    fn upload(&mut self, name: &'static str, script: &mut Script<'_>) {
        let index = script.below(3) as u32;
        let upload = u64::from(script.byte() % 4);
        let from = Uploader { task: TaskId::ps(index), incarnation: Incarnation(1), upload };
        let total = u64::from(script.about_u32(24));
        let begun =
            self.sent.get(&index).filter(|(own, of, all, _)| (*own, *of, *all) == (upload, name, total));
        let expected = begun.map_or(0, |(.., bytes)| bytes.len() as u64);
        let offset = script.about(expected);
        let piece = vec![script.byte(); 1 + script.below(12)];
        if let Err(error) = self.files.put_piece(from, name, offset, total, Bytes::from(piece.clone())) {
            return check_error(&error);
        }
        self.reached = self.reached.max(1);
        match self.files.get(name, 0..u64::MAX) {
            Some((bytes, parts)) => {
                let content = parts.concat();
                assert!(content.len() as u64 == bytes, "(B) a file has all its bytes");
                // Without a model of which uploads are repeated, the file itself is believed.
                self.known.insert(name, content);
                self.reached = 2;
            }
            None => assert!(!self.known.contains_key(name), "(B) an upload removes no file"),
        }
        let new = || (upload, name, total, Vec::new());
        let own = self.sent.entry(index).or_insert_with(new);
        if (own.0, own.1, own.2) != (upload, name, total) {
            *own = new();
        }
        if offset == own.3.len() as u64 {
            own.3.extend(piece);
        }
    }
}

/// Reads a part of a file.
fn check_range(
    files: &MemoryFiles,
    known: &BTreeMap<&str, Vec<u8>>,
    name: &str,
    range: std::ops::Range<u64>,
) {
    let found = files.get(name, range.clone());
    assert!(found.is_some() == known.contains_key(name), "(B) {name} is found if it was kept");
    let (Some((bytes, parts)), Some(content)) = (found, known.get(name)) else { return };
    assert!(bytes == content.len() as u64, "(B)");
    let (start, end) = (range.start.min(bytes), range.end.min(bytes));
    let expected = if start < end { &content[start as usize..end as usize] } else { &[] };
    assert!(parts.concat() == expected, "(B)");
}
