//! The lock of a directory of checkpoints. It keeps two jobs from saving in one directory at the same time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Read, Write};
use std::path::Path;

/// The name of the file that is locked. It stays in the directory after the lock has ended.
pub(super) const LOCK_FILE: &str = "job.lock";
/// The maximum number of bytes that are read of the holder's description.
const HOLDER_BYTES_MAX: u64 = 256;

/// A lock of a directory. The lock ends when this value is dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct StoreLock {
    /// The file, which is locked for as long as it is open.
    _file: File,
}

/// The reason why a directory could not be locked.
#[derive(Debug)]
pub(super) enum LockError {
    /// The directory is locked already; contains the description of the job that holds the lock.
    Held(String),
    /// The file system cannot lock files, or this process has no permission to open or create the file.
    Unsupported(Error),
    /// The file cannot be opened, for a reason other than a lack of permission.
    Failed(Error),
}

impl StoreLock {
    /// Locks a directory. `holder` describes the job that locks it, for the error that another job gets.
    ///
    /// # Errors
    /// If the directory is locked already, or cannot be locked.
    pub(super) fn take(directory: &Path, holder: &str) -> Result<Self, LockError> {
        let path = directory.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = match options.open(&path) {
            // The file belongs to another user. A file that can only be read can be locked, too.
            Err(denied) if denied.kind() == ErrorKind::PermissionDenied => {
                File::open(&path).map_err(|_| LockError::Unsupported(denied))?
            }
            opened => opened.map_err(LockError::Failed)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::Held(holder_of(file))),
            // CIFS, the file system of Windows hosts, returns this for a file that another host has locked.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(LockError::Held(holder_of(file)));
            }
            Err(TryLockError::Error(error)) => return Err(LockError::Unsupported(error)),
        }
        // The lock also holds without the description, so a failure to write it is ignored. The disk may be
        // full, or the file may belong to another user.
        let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
        Ok(Self { _file: file })
    }
}

/// Returns the description of the job that holds the lock.
fn holder_of(file: File) -> String {
    let mut bytes = Vec::new();
    // A failure to read the description is ignored, because the error is useful without it. The description
    // may also be empty, because the holder may not have written it yet.
    let _ = file.take(HOLDER_BYTES_MAX).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).replace(char::is_control, " ");
    if text.is_empty() { "another job".to_owned() } else { text }
}
