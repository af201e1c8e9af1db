//! Files that hold secrets: only their owner may read them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The permissions of a new file: its owner reads and writes it.
const MODE: u32 = 0o600;
/// The permissions that a secret file must not have.
const OTHERS: u32 = 0o077;

/// The reason why a file with a secret cannot be used. The content is never quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretFileError {
    /// The operating system reported an error.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What failed: `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: String,
    },
    /// Other users than the owner may use the file.
    #[error("{} has mode {mode:04o}, so others can use it, and it holds a secret: run chmod 600", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file is too large, or is not text.
    #[error("{} is not a file of this kind: expected a text of at most {bytes_max} bytes", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// The largest size in bytes.
        bytes_max: u64,
    },
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SecretFileError {
    let path = path.to_owned();
    move |error| SecretFileError::Io { action, path, error: error.to_string() }
}

/// Reads a file of at most `bytes_max` bytes.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<String, SecretFileError> {
    let file = File::open(path).map_err(failed("read", path))?;
    // The permissions are those of the open file: a path may lead to another file a moment later.
    let about = file.metadata().map_err(failed("read", path))?;
    let kind = || SecretFileError::Kind { path: path.to_owned(), bytes_max };
    if !about.is_file() {
        return Err(kind());
    }
    let mode = about.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(SecretFileError::Open { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
    if bytes.len() as u64 > bytes_max {
        return Err(kind());
    }
    String::from_utf8(bytes).map_err(|_| kind())
}

/// Writes a new file. A file that exists is never replaced: it may be the only copy of another secret.
pub(crate) fn create(path: &Path, text: &str) -> Result<(), SecretFileError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    let mut file = file.map_err(failed("write", path))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed("write", path))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_owner_may_read_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        create(&path, "text").unwrap();
        assert_eq!(read(&path, 10).unwrap(), "text");
        for mode in [0o640, 0o604, 0o620, 0o601] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read(&path, 10).unwrap_err().to_string();
            assert!(
                error.contains(&format!("has mode {mode:04o}")) && error.contains("chmod 600"),
                "{error}"
            );
        }
        set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        assert_eq!(read(&path, 4).unwrap(), "text");
        assert!(matches!(read(&path, 3), Err(SecretFileError::Kind { .. })));
        assert!(matches!(read(dir.path(), 3), Err(SecretFileError::Kind { .. })));
    }

    #[test]
    fn a_file_that_exists_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        create(&path, "one").unwrap();
        let error = create(&path, "two").unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("exists"), "{error}");
        assert_eq!(read(&path, 10).unwrap(), "one");
    }
}
