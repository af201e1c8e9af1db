//! What a client of servers proves its role with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsStream;

use crate::client_string::ClientString;
use crate::configs::{self, CLIENT, Servers};
use crate::enrolment::{Channel, prove_role};
use crate::error::IdentityError;
use crate::handshake::{handshake, limited};
use crate::proven::Proven;
use crate::secured::Secured;
use crate::untrusted::Untrusted;
use crate::verifier::Verifier;

/// The credentials of a client of servers. Clones are the same credentials.
#[derive(Clone)]
pub struct ClientCredentials(Arc<Shared>);

struct Shared {
    client: ClientString,
    verifier: Verifier,
    config: Arc<ClientConfig>,
}

impl ClientCredentials {
    /// Returns the credentials of a client with this client string.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be used.
    pub fn new(client: ClientString) -> Result<Self, IdentityError> {
        let verifier = Verifier::of_client(&client);
        let config = configs::client(Servers::Tasks(verifier.clone()), None, CLIENT)?;
        Ok(Self(Arc::new(Shared { client, verifier, config })))
    }

    /// Connects to a server over a new connection. The server shows its certificate, and the client proves
    /// its role.
    ///
    /// # Errors
    /// Returns an error if the server is one of another cluster, or refuses the client.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<Secured<S>, IdentityError> {
        let Shared { client, verifier, config } = &*self.0;
        let mut stream = handshake(Arc::clone(config), stream).await.map_err(for_client)?;
        let (channel, tasks) = {
            let peer = stream.get_ref().1;
            (Channel::of(peer)?, verifier.check_connection(peer, Duration::ZERO)?)
        };
        limited(async { Ok(prove_role(&mut stream, channel, client).await?) }).await?;
        Ok(Secured { stream: TlsStream::Client(stream), proven: Proven::Tasks(tasks) })
    }
}

/// Returns the error of a handshake as the user of a client understands it.
fn for_client(error: IdentityError) -> IdentityError {
    match error {
        IdentityError::PeerHasNone => IdentityError::NotServing,
        IdentityError::Untrusted(Untrusted::Authority | Untrusted::OtherJob | Untrusted::Chain(_)) => {
            IdentityError::OtherCluster
        }
        error => error,
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientCredentials").field(&self.0.client).finish()
    }
}
