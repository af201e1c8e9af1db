//! The settings of TLS for each kind of connection. The protocol of the connection says which kind it is:
//! tasks that talk, a task that enrols, a client of a server, or a client of an HTTP endpoint. This file
//! decides nothing about who is trusted.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::certificate::TaskCertificate;
use crate::provider::{VERSIONS, provider, usual_provider};
use crate::verifier::{AnyKey, ClientVerifier, Verifier};

/// The protocol of tasks that talk.
pub(crate) const PEERS: &[u8] = b"pushpull/1";
/// The protocol of a task that enrols.
pub(crate) const ENROLMENT: &[u8] = b"pushpull-enrol/1";
/// The protocol of a client and a server.
pub(crate) const CLIENT: &[u8] = b"pushpull-client/1";
/// The protocol of a client with a certificate and a server.
pub(crate) const CERTIFIED_CLIENT: &[u8] = b"pushpull-certified-client/1";
/// The protocol of HTTP endpoints.
pub(crate) const HTTP: &[u8] = b"http/1.1";

/// What a server demands of its clients.
pub(crate) enum Clients {
    /// Every client must show the certificate of a task.
    Tasks(Verifier),
    /// Every client must show the certificate of a client.
    Certified(Verifier),
    /// Clients have no certificates. They prove by other means who they are.
    Strangers,
}

/// What a client demands of the server.
pub(crate) enum Servers {
    /// The server must show the certificate of a task.
    Tasks(Verifier),
    /// The server must show the certificate of its host, which one of these authorities has signed.
    Hosts(Arc<RootCertStore>),
    /// The server has no certificate yet.
    Strangers,
}

/// Returns the settings of the end that listens.
pub(crate) fn server(
    clients: Clients,
    certificate: TaskCertificate,
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS)?;
    let builder = match clients {
        Clients::Tasks(verifier) => builder.with_client_cert_verifier(Arc::new(verifier)),
        Clients::Certified(verifier) => builder.with_client_cert_verifier(Arc::new(ClientVerifier(verifier))),
        Clients::Strangers => builder.with_no_client_auth(),
    };
    Ok(without_resumption(builder.with_single_cert(certificate.chain, certificate.key)?, protocol))
}

/// Returns the settings of an HTTP endpoint. Its clients have no certificates. `resolver` says which
/// certificate it shows to each of them.
pub(crate) fn https(resolver: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS)?;
    Ok(without_resumption(builder.with_no_client_auth().with_cert_resolver(resolver), HTTP))
}

fn without_resumption(mut config: ServerConfig, protocol: &[u8]) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![protocol.to_vec()];
    // A resumed session would not show its certificate again, which may have expired.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// Returns the settings of the end that dials. It shows `certificate`, if there is one.
pub(crate) fn client(
    servers: Servers,
    certificate: Option<TaskCertificate>,
    protocol: &[u8],
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = if matches!(servers, Servers::Hosts(_)) { usual_provider() } else { provider() };
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(VERSIONS)?;
    let builder = match servers {
        Servers::Tasks(verifier) => builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
        Servers::Hosts(roots) => builder.with_root_certificates(roots),
        Servers::Strangers => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyKey)),
    };
    let mut config = match certificate {
        Some(TaskCertificate { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    // Tasks have no names of hosts.
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
