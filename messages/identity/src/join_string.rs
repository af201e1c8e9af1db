//! The join string: the one secret that every task of a job is given. It names the job and its authority.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use aws_lc_rs::{hmac, rand};

use crate::hex;
use crate::secret_file::{self, SecretFileError};

/// The first part of every join string. Another format would have another number.
pub(crate) const FORMAT: &str = "pushpull1";
/// The first part of every client string.
pub(crate) const CLIENT_FORMAT: &str = "pushpull1c";
/// The size of the id of a job, in bytes.
pub(crate) const JOB_BYTES: usize = 8;
/// The size of a SHA-256 hash, in bytes.
pub(crate) const HASH_BYTES: usize = 32;
/// The size of the secret in bytes: 128 bits cannot be guessed.
pub(crate) const SECRET_BYTES: usize = 16;
/// The label with which the token of HTTP endpoints is derived from the secret. Proofs of the secret begin
/// with other bytes.
const HTTP_TOKEN_LABEL: &[u8] = b"pushpull http token 1";
/// The size of the largest file that is read as a join string, in bytes.
const FILE_BYTES_MAX: u64 = 1024;

/// The string with which a task joins a job: `pushpull1.JOB.HASH.SECRET.CHECKSUM`, where HASH is the SHA-256
/// of the authority's public key. All parts but the first are hexadecimal. [`Debug`](fmt::Debug) hides the
/// secret; only [`text`](Self::text) shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinString {
    pub(crate) job: [u8; JOB_BYTES],
    pub(crate) authority: [u8; HASH_BYTES],
    pub(crate) secret: [u8; SECRET_BYTES],
}

/// The reason why a text is not a join string. No text of it is quoted, because it may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinStringError {
    /// The text begins with another word.
    #[error(
        "the join string is not valid: expected it to begin with {FORMAT}.; write one with `pushpull join new`"
    )]
    Format,
    /// The text is a client string, with which a program cannot be a task.
    #[error(
        "got a client string, with which a program is only a client, expected the join string that `pushpull join new` has printed"
    )]
    Client,
    /// The number of parts is wrong. The value is the number that was found.
    #[error(
        "the join string is not valid: it has {0} parts, expected 5 parts with dots between them; copy all of it"
    )]
    Parts(usize),
    /// A part does not have the right number of hexadecimal digits.
    #[error(
        "the join string is not valid: its {part} must have {digits} hexadecimal digits in lower case; copy all of it"
    )]
    Digits {
        /// The part: `job`, `hash`, `secret` or `checksum`.
        part: &'static str,
        /// The number of digits that was expected.
        digits: usize,
    },
    /// The checksum is that of another text.
    #[error(
        "the join string is not valid: its checksum does not match, so a character was changed; copy it again"
    )]
    Checksum,
    /// The file cannot be read, or others can read it.
    #[error(transparent)]
    File(#[from] SecretFileError),
}

impl JoinString {
    /// Makes the join string of a new job, with a random id and a random secret. `authority` is the hash of
    /// the public key of the job's authority. Returns `None` if the system has no random numbers.
    pub(crate) fn new(authority: [u8; HASH_BYTES]) -> Option<Self> {
        let (mut job, mut secret) = ([0; JOB_BYTES], [0; SECRET_BYTES]);
        rand::fill(&mut job).ok()?;
        rand::fill(&mut secret).ok()?;
        Some(Self { job, authority, secret })
    }

    /// Reads a join string from a file that only its owner can read.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if others can read it, or if it has no valid join string.
    pub fn read(path: &Path) -> Result<Self, JoinStringError> {
        secret_file::read(path, FILE_BYTES_MAX)?.trim().parse()
    }

    /// Returns the id of the job, which is no secret.
    pub fn job(&self) -> String {
        hex::encode(&self.job)
    }

    /// Returns the whole text, with the secret.
    pub fn text(&self) -> String {
        let text = self.text_without_checksum();
        let checksum = checksum(&text);
        text + "." + &checksum
    }

    /// Returns the token with which clients of the job's HTTP endpoints prove that they may read them, and
    /// save or stop the job: 64 hexadecimal digits. It is derived from the secret, and does not reveal it.
    pub fn http_token(&self) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        hex::encode(hmac::sign(&key, HTTP_TOKEN_LABEL).as_ref())
    }

    fn text_without_checksum(&self) -> String {
        let Self { job, authority, secret } = self;
        [FORMAT.to_owned(), hex::encode(job), hex::encode(authority), hex::encode(secret)].join(".")
    }
}

/// Returns the checksum of the other parts. It finds every change of a single character.
pub(crate) fn checksum(text: &str) -> String {
    hex::encode(&crc32c::crc32c(text.as_bytes()).to_be_bytes())
}

fn part<const N: usize>(part: &'static str, text: &str) -> Result<[u8; N], JoinStringError> {
    hex::decode(text).ok_or(JoinStringError::Digits { part, digits: 2 * N })
}

impl FromStr for JoinString {
    type Err = JoinStringError;

    fn from_str(text: &str) -> Result<Self, JoinStringError> {
        let parts: Vec<&str> = text.split('.').collect();
        match parts[0] {
            FORMAT => {}
            CLIENT_FORMAT => return Err(JoinStringError::Client),
            _ => return Err(JoinStringError::Format),
        }
        let [_, job, hash, secret, check] = parts[..] else {
            return Err(JoinStringError::Parts(parts.len()));
        };
        let join =
            Self { job: part("job", job)?, authority: part("hash", hash)?, secret: part("secret", secret)? };
        let _: [u8; 4] = part("checksum", check)?;
        if checksum(&join.text_without_checksum()) != check {
            return Err(JoinStringError::Checksum);
        }
        Ok(join)
    }
}

impl fmt::Debug for JoinString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinString").field("job", &self.job()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_join() -> impl Strategy<Value = JoinString> {
        any::<([u8; JOB_BYTES], [u8; HASH_BYTES], [u8; SECRET_BYTES])>()
            .prop_map(|(job, authority, secret)| JoinString { job, authority, secret })
    }

    proptest! {
        #[test]
        fn a_join_string_is_parsed_as_it_was_written(join in any_join()) {
            prop_assert_eq!(join.text().parse(), Ok(join));
        }

        #[test]
        fn no_changed_join_string_is_valid(join in any_join(), at in any::<prop::sample::Index>(), to in 0u8..128) {
            let text = join.text();
            let mut changed = text.clone().into_bytes();
            let at = at.index(changed.len());
            changed[at] = to;
            let changed = String::from_utf8(changed).unwrap();
            prop_assert!(changed == text || changed.parse::<JoinString>().is_err());
            prop_assert!(text[..at].parse::<JoinString>().is_err());
            let doubled = format!("{}{}", &text[..at], text);
            prop_assert!(at == 0 || doubled.parse::<JoinString>().is_err());
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in any::<String>()) {
            let _ = text.parse::<JoinString>();
        }

        #[test]
        fn an_error_quotes_nothing(join in any_join(), at in 10usize..120) {
            let text = join.text();
            let broken = format!("{}x{}", &text[..at], &text[at..]);
            let error = broken.parse::<JoinString>().unwrap_err().to_string();
            prop_assert!(!error.contains(&hex::encode(&join.secret)), "{}", error);
            prop_assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        let join =
            JoinString { job: [1; JOB_BYTES], authority: [2; HASH_BYTES], secret: [0xab; SECRET_BYTES] };
        let shown = format!("{join:?}");
        assert!(shown.contains("0101") && !shown.contains("abab"), "{shown}");
    }

    #[test]
    fn the_token_of_endpoints_is_derived_from_the_secret() {
        let join = |secret| JoinString { job: [1; JOB_BYTES], authority: [2; HASH_BYTES], secret };
        // Computed by the module hmac of Python.
        for (secret, token) in [
            ([0; SECRET_BYTES], "4117c32f49635f9032d427812c69463051c23bfa0dc295c9de8b3d65339c14b4"),
            ([3; SECRET_BYTES], "b78d8101ea61d3dc56fe01f523843fefc7682a235974c8b430d940137da6463f"),
            (*b"0123456789abcdef", "e902569f6671ecb96f9b69d0fdf1d5617319fbfaa79aff6828b2b1d3daabe3e5"),
        ] {
            assert_eq!(join(secret).http_token(), token);
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let text = JoinString { job: [1; 8], authority: [2; 32], secret: [3; 16] }.text();
        for (text, words) in [
            (text.replace("pushpull1", "pushpull2"), "expected it to begin with pushpull1."),
            (text[..60].to_owned(), "it has 3 parts, expected 5"),
            (text.replacen("0101", "01", 1), "its job must have 16 hexadecimal digits"),
            (text.replacen("0303", "0304", 1), "its checksum does not match"),
        ] {
            let error = text.parse::<JoinString>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
