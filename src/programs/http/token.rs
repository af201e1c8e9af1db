//! The secret token that a client must send to save or stop the job, and to read an endpoint that other hosts
//! can reach. It is compared in constant time, and never shown.

use std::fmt;
use std::path::Path;

use anyhow::anyhow;
use pushpull_identity::{JoinString, read_secret_file};
use subtle::ConstantTimeEq;

/// The environment variable that can hold the token instead of a file.
pub(crate) const TOKEN_ENV: &str = "PUSHPULL_HTTP_TOKEN";
/// The size of the longest token, in bytes.
const BYTES_MAX: usize = 4096;
/// The size of the largest file that is read as a token, in bytes: there may be spaces around the token.
const FILE_BYTES_MAX: u64 = BYTES_MAX as u64 + 64;

/// A secret token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    text: String,
    /// True if the token is that of a join string, which has 128 random bits.
    is_derived: bool,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl Token {
    /// Makes a token from a text. `place` is the origin of the text, for errors.
    fn new(text: &str, place: &str) -> anyhow::Result<Self> {
        let text = text.trim();
        if text.len() > BYTES_MAX {
            let bytes = text.len();
            return Err(anyhow!("the token in {place} has {bytes} bytes, expected at most {BYTES_MAX}"));
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let expected = "expected one word of letters, digits and signs";
            return Err(anyhow!("the token in {place} is not valid, {expected}"));
        }
        Ok(Self { text: text.to_owned(), is_derived: false })
    }

    /// Reads the token from `file`, which only its owner may use, or takes it from `env` if no file is given.
    /// Returns `None` if no file is given and `env` is unset or empty.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if others can use it, or if the text is not a single word
    /// of at most [`BYTES_MAX`] bytes.
    pub(crate) fn read(file: Option<&Path>, env: Option<&str>) -> anyhow::Result<Option<Self>> {
        match (file, env.filter(|text| !text.is_empty())) {
            (Some(path), _) => {
                let shown = path.display();
                let text = read_secret_file(path, FILE_BYTES_MAX)
                    .map_err(|error| anyhow!("--http-token-file: {error}"))?;
                Self::new(&text, &format!("--http-token-file {shown}")).map(Some)
            }
            (None, Some(text)) => Self::new(text, TOKEN_ENV).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns the token that clients of a job with this join string send.
    pub(crate) fn of(join: &JoinString) -> Self {
        Self { text: join.http_token(), is_derived: true }
    }

    /// Returns true if the token is that of a join string, so that no client can guess it. A token that was
    /// given to the task may be short.
    pub(super) const fn is_derived(&self) -> bool {
        self.is_derived
    }

    /// Returns true when a client has sent this token.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        given.ct_eq(self.text.as_bytes()).into()
    }

    /// Returns the value of the `Authorization` header that carries this token.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.text)
    }
}

/// Returns the token that an `Authorization` header carries; `None` if it carries something else.
pub(super) fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, given) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| given.trim_ascii())
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = Token::read(None, Some(" s3cret\n")).unwrap().unwrap();
        for (header, expected) in [
            ("Bearer s3cret", true),
            ("bearer s3cret ", true),
            ("Bearer s3cre", false),
            ("Bearer s3cret2", false),
            ("Bearer ", false),
            ("Basic s3cret", false),
            ("s3cret", false),
            ("", false),
        ] {
            let given = bearer(header.as_bytes());
            assert_eq!(given.is_some_and(|given| token.is(given)), expected, "{header}");
        }
        assert!(!format!("{token:?}").contains("s3cret"));
    }

    #[test]
    fn a_file_wins_over_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "file\n").unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(
            Token::read(Some(&path), Some("env")).unwrap(),
            Some(Token::new("file", "a test").unwrap())
        );
        assert_eq!(Token::read(None, Some("")).unwrap(), None);
        assert_eq!(Token::read(None, None).unwrap(), None);
        for text in ["", " \n", "two words", "line\nline", "\u{fc}"] {
            std::fs::write(&path, text).unwrap();
            let error = Token::read(Some(&path), None).unwrap_err().to_string();
            assert!(error.contains("is not valid") && !error.contains('\n'), "{error}");
        }
        for (bytes, words) in
            [(BYTES_MAX + 1, "has 4097 bytes"), (1 << 20, "expected a text of at most 4160")]
        {
            std::fs::write(&path, "x".repeat(bytes)).unwrap();
            let error = Token::read(Some(&path), None).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("--http-token-file"), "{error}");
        }
        std::fs::write(&path, "x".repeat(BYTES_MAX)).unwrap();
        assert!(Token::read(Some(&path), None).unwrap().is_some());
        set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = Token::read(Some(&path), None).unwrap_err().to_string();
        assert!(error.contains("--http-token-file") && error.contains("has mode 0644"), "{error}");
        let error = Token::read(Some(Path::new("/dev/zero")), None).unwrap_err().to_string();
        assert!(error.contains("/dev/zero is not a file of this kind"), "{error}");
        let error = Token::read(Some(&dir.path().join("none")), None).unwrap_err().to_string();
        assert!(error.starts_with("--http-token-file: cannot read "), "{error}");
    }
}
