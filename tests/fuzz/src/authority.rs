//! The target `authority`: parses text as the file of an authority.

use std::path::Path;

use pushpull_identity::{Authority, AuthorityError};

use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "authority",
    about: &["messages/identity/src/authority.rs"],
    check,
    stages: &["no text", "no join string", "no key", "an authority"],
    seeds,
    content: |_| 0,
    words: &[b"-----BEGIN PRIVATE KEY-----\n", b"-----END PRIVATE KEY-----\n", b"\n", b"\r\n", b"AAAA", b"="],
    ..Target::USUAL
};

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    match Authority::parse(text, Path::new("file")) {
        Ok(authority) => {
            assert!(
                text.trim_start().starts_with(&authority.join().text()),
                "it has the join string of the file"
            );
            3
        }
        Err(error) => {
            check_error(&error);
            2 - usize::from(matches!(error, AuthorityError::Join { .. }))
        }
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("authority");
    Authority::new().and_then(|authority| authority.write(&path)).expect("an authority");
    vec![("authority".to_owned(), std::fs::read(path).expect("it was written"))]
}
