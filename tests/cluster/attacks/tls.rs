//! The attacker's end of a connection: TLS that trusts everybody and shows any certificate, frames, and the
//! exchange of an enrolment. It shares no code with the tasks, except the encoding of messages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use aws_lc_rs::hmac;
use pushpull_identity::JoinString;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::Message;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::wire::{Incoming, Limits, PREFIX_BYTES, Prefix};
use rcgen::KeyPair;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::{default_provider, sign::any_supported_type};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, SignatureScheme, StreamOwned};

use super::certificates::Certificate;
use crate::anybody::Anybody;
use crate::harness::frame;

/// The protocol of tasks that talk.
pub(super) const PEERS: &[u8] = b"pushpull/1";
/// The protocol of a task that enrols.
pub(super) const ENROLMENT: &[u8] = b"pushpull-enrol/1";

pub(super) type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Begins TLS on a connection with this protocol, or with none if the name is empty. Shows `shown`, whatever
/// the other end asks for.
pub(super) fn tls(stream: TcpStream, protocol: &[u8], shown: Option<&Certificate>) -> Tls {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("it has TLS 1.3");
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody));
    let mut config = match shown {
        Some(Certificate { chain, key }) => {
            let key = any_supported_type(&key.clone_key().into()).expect("a key of P-256");
            let shown = CertifiedKey::new(chain.clone(), key);
            builder.with_client_cert_resolver(Arc::new(Shown(Arc::new(shown))))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = [protocol.to_vec()].into_iter().filter(|name| !name.is_empty()).collect();
    let name = ServerName::try_from("pushpull").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("valid settings");
    StreamOwned::new(connection, stream)
}

/// Reads until the other end closes the connection, and returns why, as far as it is known here.
#[track_caller]
pub(super) fn end_of(mut stream: impl Read) -> String {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return String::new(),
            Ok(_) => {}
            Err(error) => {
                assert!(!is_timeout(&error), "the connection is still open");
                return error.to_string();
            }
        }
    }
}

/// Returns whether a read has ended because its time was over.
pub(super) fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// Sends bytes. The other end may close the connection before all of them are sent.
pub(super) fn send(stream: &mut impl Write, bytes: &[u8]) {
    let _ = stream.write_all(bytes).and_then(|()| stream.flush());
}

/// Receives the next message that is no heartbeat.
///
/// # Errors
/// Returns the reason why there is none, as text.
pub(super) fn receive(stream: &mut impl Read) -> Result<Message, String> {
    let limits = Limits::default();
    loop {
        let mut prefix = [0; PREFIX_BYTES];
        stream.read_exact(&mut prefix).map_err(|error| error.to_string())?;
        let decoded = Prefix::decode(&prefix, &limits).map_err(|error| error.to_string())?;
        let mut header = vec![0; decoded.header_bytes as usize];
        stream.read_exact(&mut header).map_err(|error| error.to_string())?;
        let incoming =
            Incoming::decode(&prefix, decoded, &header, &limits).map_err(|error| error.to_string())?;
        let mut payload = vec![0; incoming.payload_bytes()];
        stream.read_exact(&mut payload).map_err(|error| error.to_string())?;
        let buffer = BufferPool::default().take(payload.len());
        let message = incoming.complete(buffer).map_err(|error| error.to_string())?.message;
        if !matches!(message, Message::Heartbeat(_)) {
            return Ok(message);
        }
    }
}

/// Sends a request that must be refused, and returns the reason.
#[track_caller]
pub(super) fn refusal(stream: &mut (impl Read + Write), request: impl Into<Message>) -> String {
    let request = request.into();
    let name = request.name();
    send(stream, &frame(1, request));
    match receive(stream) {
        Ok(Message::Refusal(refusal)) => refusal.reason,
        other => panic!("{name} was answered with {other:?}"),
    }
}

/// Returns the question with which a task enrols on this connection, whose handshake is over. `secret` has
/// the secret that is proved.
pub(super) fn question(tls: &mut Tls, secret: &JoinString, task: TaskId, key: &KeyPair) -> Vec<u8> {
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock).expect("the handshake succeeds");
    }
    let label = b"EXPORTER-pushpull-enrolment";
    let channel = tls.conn.export_keying_material([0; 32], label, None).expect("the handshake is over");
    let (role, index) = (task.job.to_string(), task.index.to_be_bytes());
    let mut proof = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &secret_of(secret)));
    for part in [b"task", &channel[..], role.as_bytes(), &index, key.public_key_raw()] {
        proof.update(&(part.len() as u64).to_be_bytes());
        proof.update(part);
    }
    let proof = proof.sign();
    let mut body = vec![1];
    for field in [role.as_bytes(), &index, key.public_key_raw(), proof.as_ref()] {
        body.extend((field.len() as u16).to_be_bytes());
        body.extend(field);
    }
    [&(body.len() as u16).to_be_bytes()[..], &body].concat()
}

/// Receives the answer to a question: the chain of certificates.
///
/// # Errors
/// Returns the reason for a refusal.
pub(super) fn answer(tls: &mut Tls) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut length = [0; 2];
    tls.read_exact(&mut length).map_err(|error| error.to_string())?;
    let mut body = vec![0; u16::from_be_bytes(length).into()];
    tls.read_exact(&mut body).map_err(|error| error.to_string())?;
    let mut rest = &body[1..];
    let mut fields = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let (field, behind) = behind.split_at(u16::from_be_bytes(*length).into());
        fields.push(field.to_vec());
        rest = behind;
    }
    match body[0] {
        2 => Ok(fields.into_iter().take(2).map(CertificateDer::from).collect()),
        _ => Err(String::from_utf8_lossy(&fields.concat()).into_owned()),
    }
}

/// Returns the secret of a join string.
fn secret_of(join: &JoinString) -> Vec<u8> {
    let text = join.text();
    let hex = text.split('.').nth(3).expect("a join string has five parts");
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Shows this certificate.
#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
