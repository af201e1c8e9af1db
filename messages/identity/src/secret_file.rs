//! Files that prove who a task is: who may read and change them.

use std::fs::{File, OpenOptions, metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The permissions of a new file: its owner reads and writes it.
const MODE: u32 = 0o600;
/// The permissions that a secret file must not have.
const OTHERS: u32 = 0o077;
/// The permissions that the file of a key must not have. Its group may read it: Kubernetes and Vault hand a
/// key to a process of another user like that.
const OTHERS_OF_KEYS: u32 = 0o027;
/// The permissions that a public file must not have.
const CHANGED_BY_ALL: u32 = 0o002;

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
    /// Every user may use the file of a key, or change it.
    #[error(
        "{} has mode {mode:04o}, and it holds a key: only its owner, and its group for reading, may use it: run chmod 600",
        path.display()
    )]
    OpenKey {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Every user may change the file.
    #[error("{} has mode {mode:04o}, so every user can change it: run chmod o-w", path.display())]
    Changeable {
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

/// Reads a file of at most `bytes_max` bytes, which only its owner may use.
///
/// # Errors
/// Returns an error if the file cannot be read, if others can use it, if it is larger or if it is no text.
pub fn read(path: &Path, bytes_max: u64) -> Result<String, SecretFileError> {
    let open = |path, mode| SecretFileError::Open { path, mode };
    read_if_closed(path, bytes_max, OTHERS, open)
}

/// Reads a file of at most `bytes_max` bytes that has a key. Its group may read it, too.
pub(crate) fn read_key(path: &Path, bytes_max: u64) -> Result<String, SecretFileError> {
    let open = |path, mode| SecretFileError::OpenKey { path, mode };
    read_if_closed(path, bytes_max, OTHERS_OF_KEYS, open)
}

/// Reads a file of at most `bytes_max` bytes that is no secret, but decides who is trusted.
pub(crate) fn read_public(path: &Path, bytes_max: u64) -> Result<String, SecretFileError> {
    let open = |path, mode| SecretFileError::Changeable { path, mode };
    read_if_closed(path, bytes_max, CHANGED_BY_ALL, open)
}

/// Reads a file that has none of the permissions `forbidden`.
fn read_if_closed(
    path: &Path,
    bytes_max: u64,
    forbidden: u32,
    open: impl FnOnce(PathBuf, u32) -> SecretFileError,
) -> Result<String, SecretFileError> {
    let kind = || SecretFileError::Kind { path: path.to_owned(), bytes_max };
    // To open a pipe would take until somebody writes to it.
    if !metadata(path).map_err(failed("read", path))?.is_file() {
        return Err(kind());
    }
    let file = File::open(path).map_err(failed("read", path))?;
    // The permissions are those of the open file: a path may lead to another file a moment later.
    let about = file.metadata().map_err(failed("read", path))?;
    if !about.is_file() {
        return Err(kind());
    }
    let mode = about.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(open(path.to_owned(), mode));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
    if bytes.len() as u64 > bytes_max {
        return Err(kind());
    }
    String::from_utf8(bytes).map_err(|_| kind())
}

/// Writes a file that its owner only may use, new or again.
#[cfg(feature = "fuzz")]
pub(crate) fn rewrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Some file systems write a file to the disk at once if it was cut off before.
    let _ = std::fs::remove_file(path);
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    file?.write_all(bytes)
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
    fn a_group_may_read_a_key_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("key"), dir.path().join("link"));
        create(&path, "text").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for (mode, key, public) in [
            (0o600, true, true),
            (0o440, true, true),
            (0o640, true, true),
            (0o660, false, true),
            (0o644, false, true),
            (0o604, false, true),
            (0o606, false, false),
            (0o601, false, true),
        ] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for path in [&path, &link] {
                assert_eq!(read_key(path, 10).is_ok(), key, "{mode:o}");
                assert_eq!(read_public(path, 10).is_ok(), public, "{mode:o}");
            }
        }
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let error = read_public(Path::new("/dev/zero"), 10).unwrap_err();
        assert!(matches!(error, SecretFileError::Kind { .. }), "{error}");
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
