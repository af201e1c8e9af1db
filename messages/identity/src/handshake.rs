//! The TLS handshake of the end that dials, and the time limit of all handshakes and exchanges.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, client};

use crate::error::IdentityError;

/// The time limit for a handshake, and another one for an exchange after it.
const LIMIT: Duration = Duration::from_secs(5);
/// Tasks have no names of hosts, but TLS demands one. It is neither sent nor checked.
pub(crate) const NO_NAME: &str = "pushpull";

/// Performs the handshake of the end that dials.
pub(crate) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ClientConfig>,
    stream: S,
) -> Result<client::TlsStream<S>, IdentityError> {
    let protocol = config.alpn_protocols.first().cloned().unwrap_or_default();
    let name = ServerName::try_from(NO_NAME).map_err(|error| IdentityError::Tls(error.to_string()))?;
    limited(async {
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        check_protocol(stream.get_ref().1.alpn_protocol(), &protocol)?;
        Ok(stream)
    })
    .await
}

/// Checks that the two ends have agreed on the protocol that this end expects.
pub(crate) fn check_protocol(got: Option<&[u8]>, expected: &[u8]) -> Result<(), IdentityError> {
    if got == Some(expected) {
        return Ok(());
    }
    Err(IdentityError::Tls("the peer chose no protocol of pushpull".to_owned()))
}

/// Ends an exchange with an error if it takes too long.
pub(crate) async fn limited<T>(
    exchange: impl Future<Output = Result<T, IdentityError>>,
) -> Result<T, IdentityError> {
    timeout(LIMIT, exchange).await.unwrap_or(Err(IdentityError::Late(LIMIT)))
}
