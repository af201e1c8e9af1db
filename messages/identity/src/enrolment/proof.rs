//! The proofs of the secret: HMAC-SHA256 over the connection and what is asked or granted.

use aws_lc_rs::{constant_time, hmac};
use rustls::ConnectionCommon;

/// The size of a proof in bytes.
pub(crate) const PROOF_BYTES: usize = 32;
/// The label with which a connection's own number is derived from its keys.
const LABEL: &[u8] = b"EXPORTER-pushpull-enrolment";

/// A number that only the two ends of one TLS connection know. A proof contains it, so that the proof is
/// worth nothing on another connection.
#[derive(Clone, Copy)]
pub(crate) struct Channel([u8; 32]);

/// The end that proves the secret. A proof of one end is worth nothing as one of the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Task,
    Authority,
    Client,
}

impl Channel {
    /// Returns the number of a connection whose handshake is complete.
    pub(crate) fn of<D>(connection: &ConnectionCommon<D>) -> Result<Self, rustls::Error> {
        connection.export_keying_material([0; 32], LABEL, None).map(Self)
    }

    #[cfg(test)]
    pub(crate) const fn test(byte: u8) -> Self {
        Self([byte; 32])
    }

    /// Returns the proof that `side` knows `secret`. Each part is preceded by its length, so that no two
    /// lists of parts have the same proof.
    pub(crate) fn prove(&self, secret: &[u8], side: Side, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
        let name: &[u8] = match side {
            Side::Task => b"task",
            Side::Authority => b"chief",
            Side::Client => b"client",
        };
        for part in [name, &self.0].iter().chain(parts) {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(context.sign().as_ref());
        proof
    }
}

/// Compares two proofs. Takes the same time for all that differ.
pub(crate) fn is_same(expected: &[u8; PROOF_BYTES], proof: &[u8; PROOF_BYTES]) -> bool {
    constant_time::verify_slices_are_equal(expected, proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_that_of_one_connection_side_and_content() {
        let (one, other) = (Channel::test(1), Channel::test(2));
        let proof = one.prove(b"secret", Side::Task, &[b"ab", b"c"]);
        assert!(is_same(&one.prove(b"secret", Side::Task, &[b"ab", b"c"]), &proof));
        for (wrong, what) in [
            (other.prove(b"secret", Side::Task, &[b"ab", b"c"]), "another connection"),
            (one.prove(b"secret", Side::Authority, &[b"ab", b"c"]), "the other end"),
            (one.prove(b"secret", Side::Client, &[b"ab", b"c"]), "a client"),
            (one.prove(b"secret", Side::Task, &[b"a", b"bc"]), "another content"),
            (one.prove(b"other", Side::Task, &[b"ab", b"c"]), "another secret"),
        ] {
            assert!(!is_same(&wrong, &proof), "{what}");
        }
    }
}
