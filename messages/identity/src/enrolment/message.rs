//! The messages of an enrolment, and of a client that proves its role: a length, a kind, and fields with
//! their lengths. Decoding any bytes returns a message or an error.

use std::io;

use pushpull_messages::id::TaskId;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::proof::PROOF_BYTES;
use crate::client_role::ClientRole;
use crate::provider::PUBLIC_KEY_BYTES;

/// The size of the largest message in bytes. A chain of two certificates has about 1 KiB.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4096;
/// The size of the largest text in a message, in bytes.
const TEXT_BYTES_MAX: usize = 200;

const ASK: u8 = 1;
const GRANTED: u8 = 2;
const REFUSED: u8 = 3;
const CLIENT: u8 = 4;
const ADMITTED: u8 = 5;

/// The reason why a task gets no certificate, or why a client is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The task with the authority refused this task. The value is what it said.
    #[error("this task gets no certificate: {0}")]
    Refused(String),
    /// A task does not know the secret. The value is the task that it claims to be.
    #[error("a task that calls itself {0} does not know the secret of this job's join string")]
    Proof(TaskId),
    /// The task with the authority does not know the secret.
    #[error(
        "the task with the authority does not know the secret of this job's join string; give it the job's \
         --authority FILE"
    )]
    AuthorityProof,
    /// A client does not know the secret of its role.
    #[error(
        "a client with the role {0} does not know the secret of that role; print its client string with \
         `pushpull join client`"
    )]
    ClientProof(ClientRole),
    /// The server refused this client. The value is what the server said.
    #[error(
        "the server refused this client: {0}; print a client string of its cluster with `pushpull join client`"
    )]
    ClientRefused(String),
    /// The task is not one that may have a certificate.
    #[error("{0} proved the join string, but the cluster spec does not list it, or another process runs it")]
    NotListed(TaskId),
    /// A message cannot be decoded. The value says why.
    #[error("a message of an enrolment is not valid: {0}")]
    Message(&'static str),
    /// The operating system reported an error.
    #[error("the connection ended during an enrolment: {0}")]
    Io(#[from] io::Error),
}

/// A message of an enrolment, or of a client that proves its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnrolmentMessage {
    /// The task asks for a certificate.
    Ask { task: TaskId, public_key: [u8; PUBLIC_KEY_BYTES], proof: [u8; PROOF_BYTES] },
    /// The task with the authority grants the certificate.
    Granted { chain: [CertificateDer<'static>; 2], proof: [u8; PROOF_BYTES] },
    /// The other end refuses.
    Refused { reason: String },
    /// A client proves its role.
    Client { role: ClientRole, proof: [u8; PROOF_BYTES] },
    /// The server admits the client.
    Admitted,
}

impl EnrolmentMessage {
    /// Encodes the message without its length.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let index;
        let (kind, fields): (u8, Vec<&[u8]>) = match self {
            Self::Ask { task, public_key, proof } => {
                index = task.index.to_be_bytes();
                (ASK, vec![task.job.as_str().as_bytes(), &index, public_key, proof])
            }
            Self::Granted { chain: [leaf, authority], proof } => (GRANTED, vec![leaf, authority, proof]),
            Self::Refused { reason } => (REFUSED, vec![reason.as_bytes()]),
            Self::Client { role, proof } => (CLIENT, vec![role.as_str().as_bytes(), proof]),
            Self::Admitted => (ADMITTED, vec![]),
        };
        let mut bytes = vec![kind];
        for field in fields {
            debug_assert!(field.len() <= MESSAGE_BYTES_MAX, "a field of our own");
            bytes.extend((field.len() as u16).to_be_bytes());
            bytes.extend(field);
        }
        bytes
    }

    /// Decodes a message without its length.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, EnrolmentError> {
        let invalid = EnrolmentError::Message;
        let (&kind, mut rest) = bytes.split_first().ok_or(invalid("it is empty"))?;
        let mut field = || {
            let (length, behind) = rest.split_first_chunk::<2>().ok_or(invalid("a field is missing"))?;
            let (field, behind) = behind
                .split_at_checked(u16::from_be_bytes(*length).into())
                .ok_or(invalid("a field is longer than the message"))?;
            rest = behind;
            Ok::<_, EnrolmentError>(field)
        };
        let message = match kind {
            ASK => {
                let job = std::str::from_utf8(field()?).ok().and_then(|job| job.parse().ok());
                let job = job.ok_or(invalid("the role is not valid"))?;
                let index = u32::from_be_bytes(sized(field()?)?);
                let (public_key, proof) = (sized(field()?)?, sized(field()?)?);
                Self::Ask { task: TaskId::new(job, index), public_key, proof }
            }
            GRANTED => {
                let chain = [field()?, field()?].map(|bytes| CertificateDer::from(bytes.to_vec()));
                Self::Granted { chain, proof: sized(field()?)? }
            }
            REFUSED => {
                let reason = std::str::from_utf8(field()?).map_err(|_| invalid("the reason is not text"))?;
                if reason.len() > TEXT_BYTES_MAX || reason.chars().any(char::is_control) {
                    return Err(invalid("the reason is not a short line"));
                }
                Self::Refused { reason: reason.to_owned() }
            }
            CLIENT => {
                let role = std::str::from_utf8(field()?).ok().and_then(|role| role.parse().ok());
                Self::Client { role: role.ok_or(invalid("the role is not valid"))?, proof: sized(field()?)? }
            }
            ADMITTED => Self::Admitted,
            _ => return Err(invalid("its kind is unknown")),
        };
        if rest.is_empty() { Ok(message) } else { Err(invalid("bytes follow it")) }
    }

    /// Writes the message with its length.
    pub(crate) async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<(), EnrolmentError> {
        let body = self.encode();
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(EnrolmentError::Message("it is too large"));
        }
        let length = (body.len() as u16).to_be_bytes();
        stream.write_all(&[&length[..], &body].concat()).await?;
        Ok(stream.flush().await?)
    }

    /// Reads a message with its length.
    pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self, EnrolmentError> {
        let length = usize::from(stream.read_u16().await?);
        if length > MESSAGE_BYTES_MAX {
            return Err(EnrolmentError::Message("it is too large"));
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Self::decode(&body)
    }
}

fn sized<const N: usize>(field: &[u8]) -> Result<[u8; N], EnrolmentError> {
    field.try_into().map_err(|_| EnrolmentError::Message("a field has the wrong size"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_message() -> impl Strategy<Value = EnrolmentMessage> {
        let bytes = |size| prop::collection::vec(any::<u8>(), size);
        let certificate = move || bytes(0..1000usize).prop_map(CertificateDer::from);
        prop_oneof![
            ("[a-z]{1,9}", any::<u32>(), bytes(65..66), any::<[u8; PROOF_BYTES]>()).prop_map(
                |(job, index, key, proof)| {
                    let task = TaskId::new(job.parse().unwrap(), index);
                    EnrolmentMessage::Ask { task, public_key: key.try_into().unwrap(), proof }
                }
            ),
            (certificate(), certificate(), any::<[u8; PROOF_BYTES]>()).prop_map(
                |(leaf, authority, proof)| EnrolmentMessage::Granted { chain: [leaf, authority], proof }
            ),
            "[ -~]{0,200}".prop_map(|reason| EnrolmentMessage::Refused { reason }),
            (prop::sample::select(&ClientRole::ALL[..]), any::<[u8; PROOF_BYTES]>())
                .prop_map(|(role, proof)| EnrolmentMessage::Client { role, proof }),
            Just(EnrolmentMessage::Admitted),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_decoded_as_it_was_encoded(message in any_message(), cut in any::<prop::sample::Index>()) {
            let bytes = message.encode();
            prop_assert_eq!(EnrolmentMessage::decode(&bytes).unwrap(), message);
            prop_assert!(EnrolmentMessage::decode(&bytes[..cut.index(bytes.len())]).is_err());
            prop_assert!(EnrolmentMessage::decode(&[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(kind in 0u8..7, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = EnrolmentMessage::decode(&[&[kind], &bytes[..]].concat());
            let _ = EnrolmentMessage::decode(&bytes);
        }
    }

    #[tokio::test]
    async fn a_message_that_is_cut_or_too_large_is_refused() {
        let large = [&u16::MAX.to_be_bytes()[..], &[0; 100]].concat();
        let error = EnrolmentMessage::read(&mut &large[..]).await.unwrap_err();
        assert!(matches!(error, EnrolmentError::Message("it is too large")), "{error}");
        let cut = [&10u16.to_be_bytes()[..], &[REFUSED; 3]].concat();
        assert!(matches!(EnrolmentMessage::read(&mut &cut[..]).await, Err(EnrolmentError::Io(_))));
        let reason = "x".repeat(MESSAGE_BYTES_MAX);
        assert!(EnrolmentMessage::Refused { reason }.write(&mut Vec::new()).await.is_err());
    }
}
