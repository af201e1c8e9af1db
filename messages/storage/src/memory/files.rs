//! The files that a ps task keeps in its memory. A plain state machine without clock or socket.
//!
//! Wanted properties: (A) a file appears when its last piece has arrived, with the bytes of its pieces in
//! order; (B) a piece that arrives twice has no further effect; (C) the bytes of all files, together with
//! those that unfinished uploads will have, never exceed the bound.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::FILES_KEPT_MAX;

/// The number of bytes that each file counts in addition to its own, so that many small files are bounded,
/// too.
const FILE_BYTES: u64 = 1 << 10;

/// A task that uploads a file: the task, its incarnation and its nonce, and the number that it gave the
/// upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uploader {
    /// The task. It has at most one unfinished upload.
    pub task: TaskId,
    /// The incarnation of the task.
    pub incarnation: Incarnation,
    /// The number of the upload. Each upload of a task has another number.
    pub upload: u64,
}

/// The error for a file or piece that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesFull {
    /// The files would take too much memory.
    #[error(
        "'{name}' with {bytes} bytes does not fit: checkpoints already take {taken} of {max} bytes of this task's memory; raise --memory-checkpoint-mib"
    )]
    Bytes {
        /// The file's name.
        name: String,
        /// The file's length in bytes.
        bytes: u64,
        /// The number of bytes that the files take already.
        taken: u64,
        /// The bound.
        max: u64,
    },
    /// There are too many files.
    #[error(
        "'{name}' cannot be kept: this task has {FILES_KEPT_MAX} files in its memory already, expected fewer"
    )]
    Files {
        /// The file's name.
        name: String,
    },
    /// A piece does not follow the pieces before it.
    #[error(
        "a piece of '{name}' begins at byte {offset}, expected {expected}; send the file again from its start"
    )]
    Gap {
        /// The file's name.
        name: String,
        /// The position of the piece.
        offset: u64,
        /// The position that follows the pieces that have arrived.
        expected: u64,
    },
}

/// The files in a task's memory.
#[derive(Debug)]
pub struct MemoryFiles {
    files: BTreeMap<String, KeptFile>,
    uploads: BTreeMap<TaskId, Upload>,
    /// The bytes that files and uploads take, including [`FILE_BYTES`] for each.
    taken: u64,
    bytes_max: u64,
}

#[derive(Debug)]
struct KeptFile {
    pieces: Pieces,
    /// The upload by which the file came; `None` for a file of the task itself.
    from: Option<Uploader>,
}

#[derive(Debug)]
struct Upload {
    from: Uploader,
    name: String,
    total: u64,
    pieces: Pieces,
}

/// Consecutive pieces of a file, each with its position.
#[derive(Debug, Default)]
struct Pieces {
    pieces: Vec<(u64, Bytes)>,
    bytes: u64,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        let start = self.bytes;
        self.bytes += piece.len() as u64;
        if !piece.is_empty() {
            self.pieces.push((start, piece));
        }
    }

    /// Returns the bytes of a range that lies within the pieces. They share the memory of the pieces.
    fn range(&self, range: Range<u64>) -> Vec<Bytes> {
        let first = self.pieces.partition_point(|(start, piece)| start + piece.len() as u64 <= range.start);
        let within = self.pieces[first..].iter().take_while(|(start, _)| *start < range.end);
        within
            .map(|(start, piece)| {
                let from = range.start.saturating_sub(*start) as usize;
                let to = (range.end - start).min(piece.len() as u64) as usize;
                piece.slice(from..to)
            })
            .collect()
    }
}

const fn counted(bytes: u64) -> u64 {
    bytes.saturating_add(FILE_BYTES)
}

impl MemoryFiles {
    /// Returns a task's files, of which there are none yet. They will take at most `bytes_max` bytes.
    pub const fn new(bytes_max: u64) -> Self {
        Self { files: BTreeMap::new(), uploads: BTreeMap::new(), taken: 0, bytes_max }
    }

    /// Returns the number of bytes that the files and the unfinished uploads take.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Keeps a file of the task itself, without copying it. An existing file of this name is replaced.
    ///
    /// # Errors
    /// If the file does not fit.
    pub fn put(&mut self, name: &str, parts: impl IntoIterator<Item = Bytes>) -> Result<(), FilesFull> {
        let mut pieces = Pieces::default();
        parts.into_iter().for_each(|part| pieces.push(part));
        self.reserve(name, pieces.bytes)?;
        self.keep(name.to_owned(), KeptFile { pieces, from: None });
        Ok(())
    }

    /// Adds a piece to an upload. The first piece of an upload ends an earlier unfinished one of the same
    /// task.
    ///
    /// # Errors
    /// If the file does not fit, or if the piece does not follow the pieces before it.
    pub fn put_piece(
        &mut self,
        from: Uploader,
        name: &str,
        offset: u64,
        total: u64,
        piece: Bytes,
    ) -> Result<(), FilesFull> {
        let is_kept = self.files.get(name).is_some_and(|file| file.from == Some(from));
        if is_kept {
            return Ok(());
        }
        let known = self.uploads.get(&from.task);
        let continues =
            known.is_some_and(|known| known.from == from && known.name == name && known.total == total);
        if !continues {
            if offset != 0 {
                return Err(FilesFull::Gap { name: name.to_owned(), offset, expected: 0 });
            }
            self.forget_upload(from.task);
            self.reserve(name, total)?;
            let upload = Upload { from, name: name.to_owned(), total, pieces: Pieces::default() };
            self.uploads.insert(from.task, upload);
        }
        let upload = self.uploads.get_mut(&from.task).expect("the upload has begun");
        let expected = upload.pieces.bytes;
        let end = offset.saturating_add(piece.len() as u64);
        if end <= expected && offset < expected {
            return Ok(());
        }
        if offset != expected || end > total {
            return Err(FilesFull::Gap { name: name.to_owned(), offset, expected });
        }
        upload.pieces.push(piece);
        if end == total {
            let Upload { pieces, .. } = self.uploads.remove(&from.task).expect("the upload has begun");
            self.keep(name.to_owned(), KeptFile { pieces, from: Some(from) });
        }
        Ok(())
    }

    /// Returns the length of a file, and the bytes of the part of `range` that the file has; `None` if there
    /// is no such file.
    pub fn get(&self, name: &str, range: Range<u64>) -> Option<(u64, Vec<Bytes>)> {
        let KeptFile { pieces, .. } = self.files.get(name)?;
        let end = range.end.min(pieces.bytes);
        let found = if range.start < end { pieces.range(range.start..end) } else { Vec::new() };
        Some((pieces.bytes, found))
    }

    /// Returns the names and lengths of the files in a folder and in the folders in it; of all files if the
    /// name of the folder is empty.
    pub fn list(&self, folder: &str) -> Vec<(String, u64)> {
        let within = |name: &str| {
            folder.is_empty() || name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        let found = self.files.iter().filter(|(name, _)| within(name));
        found.map(|(name, file)| (name.clone(), file.pieces.bytes)).collect()
    }

    /// Deletes a file, if it exists.
    pub fn delete(&mut self, name: &str) {
        if let Some(file) = self.files.remove(name) {
            self.taken -= counted(file.pieces.bytes);
        }
    }

    /// Counts the bytes of a file that will be kept.
    fn reserve(&mut self, name: &str, bytes: u64) -> Result<(), FilesFull> {
        let taken = self.taken.saturating_add(counted(bytes));
        if taken > self.bytes_max {
            let (name, taken, max) = (name.to_owned(), self.taken, self.bytes_max);
            return Err(FilesFull::Bytes { name, bytes, taken, max });
        }
        if self.files.len() + self.uploads.len() >= FILES_KEPT_MAX {
            return Err(FilesFull::Files { name: name.to_owned() });
        }
        self.taken = taken;
        Ok(())
    }

    /// Keeps a file whose bytes are counted already.
    fn keep(&mut self, name: String, file: KeptFile) {
        if let Some(replaced) = self.files.insert(name, file) {
            self.taken -= counted(replaced.pieces.bytes);
        }
    }

    fn forget_upload(&mut self, task: TaskId) {
        if let Some(upload) = self.uploads.remove(&task) {
            self.taken -= counted(upload.total);
        }
    }
}
