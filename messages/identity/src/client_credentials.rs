//! What a client of servers proves its role with: a client string, or a certificate in files.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::observe::unix_time;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsStream;

use crate::client_string::ClientString;
use crate::configs::{self, CERTIFIED_CLIENT, CLIENT, Servers};
use crate::enrolment::{Channel, prove_role};
use crate::error::IdentityError;
use crate::handshake::{handshake, limited};
use crate::proven::Proven;
use crate::secured::Secured;
use crate::tls_files::{Material, TlsFiles, TlsFilesError};
use crate::untrusted::Untrusted;
use crate::verifier::Verifier;

/// The credentials of a client of servers. Clones are the same credentials.
#[derive(Clone)]
pub struct ClientCredentials(Arc<Shared>);

struct Shared {
    /// `None` if the certificate proves the role.
    client: Option<ClientString>,
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
        Ok(Self(Arc::new(Shared { client: Some(client), verifier, config })))
    }

    /// Returns the credentials of a client whose certificate is in files, and names its role.
    ///
    /// # Errors
    /// Returns an error if the files cannot be used, or if the certificate does not name exactly one role.
    pub fn with_files(files: &TlsFiles) -> Result<Self, TlsFilesError> {
        let (material, _) = Material::of_client(files, &files.read()?, unix_time())?;
        let Material { verifier, certificate, .. } = material;
        let config = configs::client(Servers::Tasks(verifier.clone()), Some(certificate), CERTIFIED_CLIENT);
        let config = config.map_err(|error| TlsFilesError::Tls {
            path: files.certificate.clone(),
            reason: error.to_string(),
        })?;
        Ok(Self(Arc::new(Shared { client: None, verifier, config })))
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
        let mut stream =
            handshake(Arc::clone(config), stream).await.map_err(|error| self.explained(error))?;
        let tasks = verifier.check_connection(stream.get_ref().1, Duration::ZERO)?;
        if let Some(client) = client {
            let channel = Channel::of(stream.get_ref().1)?;
            limited(async { Ok(prove_role(&mut stream, channel, client).await?) }).await?;
        }
        Ok(Secured { stream: TlsStream::Client(stream), proven: Proven::Tasks(tasks) })
    }

    /// Returns the error of a handshake as the user of a client understands it.
    fn explained(&self, error: IdentityError) -> IdentityError {
        match error {
            IdentityError::PeerHasNone => IdentityError::NotServing,
            IdentityError::Untrusted(Untrusted::Authority | Untrusted::OtherJob | Untrusted::Chain(_))
                if self.0.client.is_some() =>
            {
                IdentityError::OtherCluster
            }
            error => error,
        }
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientCredentials").field(&self.0.client).finish()
    }
}
