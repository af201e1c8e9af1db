//! The two ends of an admission: a client proves its role, and a server admits it. The server has shown its
//! certificate before, and the client has none.

use tokio::io::{AsyncRead, AsyncWrite};

use super::message::{EnrolmentError, EnrolmentMessage};
use super::proof::{Channel, PROOF_BYTES, Side, is_same};
use crate::client_role::ClientRole;
use crate::client_string::ClientString;
use crate::join_string::JoinString;

/// The refusal that every client receives.
const REFUSAL: &str = "its client string is not one of this cluster";

fn proof_of(client: &ClientString, channel: Channel) -> [u8; PROOF_BYTES] {
    channel.prove(&client.secret, Side::Client, &[client.role.as_str().as_bytes()])
}

/// Proves the role of a client string to the server at the other end.
pub(crate) async fn prove_role(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    channel: Channel,
    client: &ClientString,
) -> Result<(), EnrolmentError> {
    let proof = proof_of(client, channel);
    EnrolmentMessage::Client { role: client.role, proof }.write(stream).await?;
    match EnrolmentMessage::read(stream).await? {
        EnrolmentMessage::Admitted => Ok(()),
        EnrolmentMessage::Refused { reason } => Err(EnrolmentError::ClientRefused(reason)),
        _ => Err(EnrolmentError::Message("expected that the client is admitted or refused")),
    }
}

/// Reads the proof of the client at the other end, and returns the role that it has proved.
pub(crate) async fn admit(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    channel: Channel,
    join: &JoinString,
) -> Result<ClientRole, EnrolmentError> {
    let proved = match EnrolmentMessage::read(stream).await? {
        EnrolmentMessage::Client { role, proof } => {
            let expected = proof_of(&ClientString::of(join, role), channel);
            if is_same(&expected, &proof) { Ok(role) } else { Err(EnrolmentError::ClientProof(role)) }
        }
        _ => Err(EnrolmentError::Message("expected the proof of a client")),
    };
    let answer = match &proved {
        Ok(_) => EnrolmentMessage::Admitted,
        Err(_) => EnrolmentMessage::Refused { reason: REFUSAL.to_owned() },
    };
    answer.write(stream).await?;
    proved
}
