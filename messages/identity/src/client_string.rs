//! The client string: the secret with which a program can be a client of servers, and nothing else.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use aws_lc_rs::hmac;

use crate::client_role::ClientRole;
use crate::hex;
use crate::join_string::{CLIENT_FORMAT, FORMAT, HASH_BYTES, JOB_BYTES, JoinString, SECRET_BYTES, checksum};
use crate::secret_file::{self, SecretFileError};

/// The size of the largest file that is read as a client string, in bytes.
const FILE_BYTES_MAX: u64 = 1024;
/// The label with which the secret of a client string is derived from that of the join string.
const LABEL: &[u8] = b"pushpull client string";

/// The string with which a program is a client: `pushpull1c.JOB.HASH.ROLE.SECRET.CHECKSUM`. JOB and HASH are
/// those of the cluster's join string. SECRET is derived from the secret of the join string and the role, so
/// a server recognises it without a list, and nobody can derive the join string or another role from it.
/// [`Debug`](fmt::Debug) hides the secret; only [`text`](Self::text) shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientString {
    pub(crate) job: [u8; JOB_BYTES],
    pub(crate) authority: [u8; HASH_BYTES],
    pub(crate) role: ClientRole,
    pub(crate) secret: [u8; SECRET_BYTES],
}

/// The reason why a text is not a client string. No text of it is quoted, because it may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientStringError {
    /// The text begins with another word.
    #[error(
        "the client string is not valid: expected it to begin with {CLIENT_FORMAT}.; print one with `pushpull join client`"
    )]
    Format,
    /// The text is a join string, which would make the program any task.
    #[error(
        "got a join string, which is for servers alone, expected a client string; print one with `pushpull join client`"
    )]
    Join,
    /// The number of parts is wrong. The value is the number that was found.
    #[error(
        "the client string is not valid: it has {0} parts, expected 6 parts with dots between them; copy all of it"
    )]
    Parts(usize),
    /// The role is not one that clients have.
    #[error("the client string is not valid: its role must be run or read; copy it again")]
    Role,
    /// A part does not have the right number of hexadecimal digits.
    #[error(
        "the client string is not valid: its {part} must have {digits} hexadecimal digits in lower case; copy all of it"
    )]
    Digits {
        /// The part: `job`, `hash`, `secret` or `checksum`.
        part: &'static str,
        /// The number of digits that was expected.
        digits: usize,
    },
    /// The checksum is that of another text.
    #[error(
        "the client string is not valid: its checksum does not match, so a character was changed; copy it again"
    )]
    Checksum,
    /// The file cannot be read, or others can read it.
    #[error(transparent)]
    File(#[from] SecretFileError),
}

impl ClientString {
    /// Returns the client string of a role, for the cluster whose join string is `join`.
    pub fn of(join: &JoinString, role: ClientRole) -> Self {
        let JoinString { job, authority, secret } = join;
        Self { job: *job, authority: *authority, role, secret: derived(secret, role) }
    }

    /// Reads a client string from a file that only its owner can read.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if others can read it, or if it has no valid client
    /// string.
    pub fn read(path: &Path) -> Result<Self, ClientStringError> {
        secret_file::read(path, FILE_BYTES_MAX)?.trim().parse()
    }

    /// Returns what the client may do.
    pub const fn role(&self) -> ClientRole {
        self.role
    }

    /// Returns the whole text, with the secret.
    pub fn text(&self) -> String {
        let text = self.text_without_checksum();
        let checksum = checksum(&text);
        text + "." + &checksum
    }

    fn text_without_checksum(&self) -> String {
        let Self { job, authority, role, secret } = self;
        let [job, authority, secret] = [hex::encode(job), hex::encode(authority), hex::encode(secret)];
        [CLIENT_FORMAT, &job, &authority, role.as_str(), &secret].join(".")
    }
}

/// Derives the secret of a role from that of the join string: the first half of an HMAC-SHA256. Each part is
/// preceded by its length.
fn derived(join: &[u8; SECRET_BYTES], role: ClientRole) -> [u8; SECRET_BYTES] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, join));
    for part in [LABEL, role.as_str().as_bytes()] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut secret = [0; SECRET_BYTES];
    secret.copy_from_slice(&context.sign().as_ref()[..SECRET_BYTES]);
    secret
}

fn part<const N: usize>(part: &'static str, text: &str) -> Result<[u8; N], ClientStringError> {
    hex::decode(text).ok_or(ClientStringError::Digits { part, digits: 2 * N })
}

impl FromStr for ClientString {
    type Err = ClientStringError;

    fn from_str(text: &str) -> Result<Self, ClientStringError> {
        let parts: Vec<&str> = text.split('.').collect();
        match parts[0] {
            CLIENT_FORMAT => {}
            FORMAT => return Err(ClientStringError::Join),
            _ => return Err(ClientStringError::Format),
        }
        let [_, job, hash, role, secret, check] = parts[..] else {
            return Err(ClientStringError::Parts(parts.len()));
        };
        let client = Self {
            job: part("job", job)?,
            authority: part("hash", hash)?,
            role: role.parse().map_err(|_| ClientStringError::Role)?,
            secret: part("secret", secret)?,
        };
        let _: [u8; 4] = part("checksum", check)?;
        if checksum(&client.text_without_checksum()) != check {
            return Err(ClientStringError::Checksum);
        }
        Ok(client)
    }
}

impl fmt::Debug for ClientString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = hex::encode(&self.job);
        f.debug_struct("ClientString").field("job", &job).field("role", &self.role).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::join_string::JoinStringError;

    fn any_client() -> impl Strategy<Value = ClientString> {
        let join = any::<([u8; JOB_BYTES], [u8; HASH_BYTES], [u8; SECRET_BYTES])>()
            .prop_map(|(job, authority, secret)| JoinString { job, authority, secret });
        let role = prop::sample::select(&ClientRole::ALL[..]);
        (join, role).prop_map(|(join, role)| ClientString::of(&join, role))
    }

    fn join() -> JoinString {
        JoinString { job: [1; 8], authority: [2; 32], secret: [3; 16] }
    }

    proptest! {
        #[test]
        fn a_client_string_is_parsed_as_it_was_written(client in any_client()) {
            prop_assert_eq!(client.text().parse(), Ok(client));
        }

        #[test]
        fn no_changed_client_string_is_valid(
            client in any_client(), at in any::<prop::sample::Index>(), to in 0u8..128,
        ) {
            let text = client.text();
            let mut changed = text.clone().into_bytes();
            let at = at.index(changed.len());
            changed[at] = to;
            let changed = String::from_utf8(changed).unwrap();
            prop_assert!(changed == text || changed.parse::<ClientString>().is_err());
            prop_assert!(text[..at].parse::<ClientString>().is_err());
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in any::<String>()) {
            let _ = text.parse::<ClientString>();
            let _ = format!("{CLIENT_FORMAT}.{text}").parse::<ClientString>();
        }

        #[test]
        fn an_error_quotes_nothing(client in any_client(), at in 11usize..120) {
            let text = client.text();
            let broken = format!("{}x{}", &text[..at], &text[at..]);
            let error = broken.parse::<ClientString>().unwrap_err().to_string();
            prop_assert!(!error.contains(&hex::encode(&client.secret)), "{}", error);
            prop_assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn each_role_and_each_job_has_its_own_secret() {
        let (one, other) = (join(), JoinString { secret: [4; 16], ..join() });
        let secrets: Vec<[u8; SECRET_BYTES]> = [&one, &other]
            .into_iter()
            .flat_map(|join| ClientRole::ALL.map(|role| ClientString::of(join, role).secret))
            .chain([one.secret, other.secret])
            .collect();
        for (position, secret) in secrets.iter().enumerate() {
            assert!(!secrets[..position].contains(secret), "{position}");
        }
        assert_eq!(ClientString::of(&one, ClientRole::Run), ClientString::of(&one, ClientRole::Run));
    }

    #[test]
    fn a_join_string_and_a_client_string_are_told_apart() {
        let client = ClientString::of(&join(), ClientRole::Read);
        assert_eq!(join().text().parse::<ClientString>(), Err(ClientStringError::Join));
        assert_eq!(client.text().parse::<JoinString>(), Err(JoinStringError::Client));
    }

    #[test]
    fn debug_hides_the_secret() {
        let client =
            ClientString { secret: [0xab; SECRET_BYTES], ..ClientString::of(&join(), ClientRole::Run) };
        let shown = format!("{client:?}");
        assert!(shown.contains("0101") && shown.contains("Run") && !shown.contains("abab"), "{shown}");
        assert!(!shown.contains("171, 171"), "{shown}");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let text = ClientString::of(&join(), ClientRole::Read).text();
        for (text, words) in [
            (text.replace("pushpull1c", "pushpull2c"), "expected it to begin with pushpull1c."),
            (text[..60].to_owned(), "it has 3 parts, expected 6"),
            (text.replacen("0101", "01", 1), "its job must have 16 hexadecimal digits"),
            (text.replace(".read.", ".write."), "its role must be run or read"),
            (text.replace(".read.", ".run."), "its checksum does not match"),
        ] {
            let error = text.parse::<ClientString>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
