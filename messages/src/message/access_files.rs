//! Reads and changes the files that a ps task keeps in its memory: those of the checkpoints in the memory of
//! the ps tasks. The payload of a piece is one segment.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::checkpoint::is_file_name;

/// The largest piece of a file in one request or reply, in bytes.
pub const FILE_PIECE_BYTES_MAX: u64 = 16 << 20;
/// The maximum number of files that a ps task keeps in its memory, and that a reply lists.
pub const FILES_KEPT_MAX: usize = 1 << 16;

/// A request from the chief or a ps task to a ps task. A request that arrives twice has the same effect as
/// one that arrives once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessFiles {
    /// What to do.
    pub access: FileAccess,
}

/// An operation on the files in a ps task's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAccess {
    /// Adds a piece to a file, which appears when its last piece has arrived. The pieces arrive in order.
    Put {
        /// The file's name.
        name: String,
        /// The number of the upload. Each upload of a task has another number.
        upload: u64,
        /// The position of the piece in the file, in bytes.
        offset: u64,
        /// The length of the whole file in bytes.
        total: u64,
    },
    /// Returns a piece of a file and the file's length.
    Get {
        /// The file's name.
        name: String,
        /// The position of the piece in the file, in bytes.
        offset: u64,
        /// The largest length of the piece in bytes; 0 to ask only for the length of the file.
        bytes: u64,
    },
    /// Lists the files of a folder and of the folders in it.
    List {
        /// The folder's name; empty for all files.
        folder: String,
    },
    /// Deletes a file, if it exists.
    Delete {
        /// The file's name.
        name: String,
    },
}

/// The reply to [`AccessFiles`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesAccessed {
    /// The result.
    pub result: FilesResult,
}

/// The result of an operation on files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesResult {
    /// The piece was added, or the file was deleted.
    Done,
    /// The file does not exist.
    Missing,
    /// The file exists. The payload is the piece; there is no payload if the piece is empty.
    Found {
        /// The length of the whole file in bytes.
        bytes: u64,
    },
    /// The files of the folder.
    Listed(Vec<ListedFile>),
}

/// A file in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// The file's name.
    pub name: String,
    /// The file's length in bytes.
    pub bytes: u64,
}

fn valid_name(name: &str) -> Result<(), Invalid> {
    match is_file_name(name) {
        true => Ok(()),
        false => Err(Invalid(format!(
            "'{}' is not the name of a file: expected parts of letters, digits, '-', '_' and '.' between '/'",
            crate::excerpt::excerpt(name, 64)
        ))),
    }
}

fn piece_within(bytes: u64) -> Result<(), Invalid> {
    match bytes <= FILE_PIECE_BYTES_MAX {
        true => Ok(()),
        false => Err(Invalid(format!(
            "a piece of a file has {bytes} bytes, expected at most {FILE_PIECE_BYTES_MAX}"
        ))),
    }
}

impl Content for AccessFiles {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        match &self.access {
            FileAccess::Put { name, offset, total, .. } => {
                valid_name(name)?;
                let Some(piece) = segments.first().copied().filter(|&piece| piece > 0 && segments.len() == 1)
                else {
                    let got = segments.len();
                    return Err(Invalid(format!(
                        "got {got} payload segment(s), expected one with at least 1 byte of the file"
                    )));
                };
                piece_within(piece)?;
                match offset.checked_add(piece).is_some_and(|end| end <= *total) {
                    true => Ok(()),
                    false => Err(Invalid(format!(
                        "got {piece} bytes at {offset} of a file of {total} bytes, expected no byte after its end"
                    ))),
                }
            }
            FileAccess::Get { name, bytes, .. } => {
                valid_name(name)?;
                piece_within(*bytes)?;
                no_payload(segments)
            }
            FileAccess::List { folder } => {
                if !folder.is_empty() {
                    valid_name(folder)?;
                }
                no_payload(segments)
            }
            FileAccess::Delete { name } => {
                valid_name(name)?;
                no_payload(segments)
            }
        }
    }
}

impl Content for FilesAccessed {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        match (&self.result, segments) {
            (FilesResult::Found { .. }, &[piece]) => piece_within(piece),
            (FilesResult::Listed(files), _) if files.len() > FILES_KEPT_MAX => {
                let files = files.len();
                Err(Invalid(format!("lists {files} files, expected at most {FILES_KEPT_MAX}")))
            }
            (FilesResult::Listed(files), _) => {
                files.iter().try_for_each(|file| valid_name(&file.name))?;
                no_payload(segments)
            }
            _ => no_payload(segments),
        }
    }
}
