//! HTTPS for the HTTP endpoints of tasks, and for the program that reads them. An endpoint shows the task's
//! certificate, and its client checks that the job's authority has signed it. Clients show no certificates:
//! they send a token.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server};

use crate::configs::{self, HTTP, Servers};
use crate::credentials::Credentials;
use crate::error::IdentityError;
use crate::handshake::NO_NAME;
use crate::join_string::JoinString;
use crate::tls_files::{self, TlsFilesError};
use crate::verifier::Verifier;

/// A connection of an HTTP endpoint.
pub type HttpsStream<S> = server::TlsStream<S>;
/// A connection to an HTTP endpoint.
pub type HttpsClientStream<S> = StreamOwned<ClientConnection, S>;

/// The end of HTTPS that listens. Clones are the same end.
#[derive(Clone)]
pub struct HttpsServer(TlsAcceptor);

impl HttpsServer {
    /// Returns the end that shows the certificate of the process with these credentials.
    ///
    /// # Errors
    /// Returns an error if the TLS library refuses the settings, which would be a bug.
    pub fn new(credentials: &Credentials) -> Result<Self, IdentityError> {
        let config = configs::https(Arc::new(Newest(credentials.clone())))?;
        Ok(Self(config.into()))
    }

    /// Performs the handshake of a connection that was accepted. The caller limits its time.
    ///
    /// # Errors
    /// Returns an error if the connection ends, or if the client does not speak TLS 1.3.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<HttpsStream<S>> {
        self.0.accept(stream).await
    }
}

impl fmt::Debug for HttpsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpsServer")
    }
}

/// Shows the newest certificate of the task. Until the task has one, it shows one that proves nothing.
#[derive(Debug)]
struct Newest(Credentials);

impl ResolvesServerCert for Newest {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.shown().ok()
    }
}

/// The end of HTTPS that dials. It trusts the certificates of one job, or of the authorities in a file.
#[derive(Clone, Debug)]
pub struct HttpsClient {
    config: Arc<ClientConfig>,
    /// Whether the certificate of the other end must name its host.
    checks_host: bool,
}

impl HttpsClient {
    /// Returns the client that trusts the authority which the join string names.
    ///
    /// # Errors
    /// Returns an error if the TLS library refuses the settings, which would be a bug.
    pub fn new(join: &JoinString) -> Result<Self, IdentityError> {
        let config = configs::client(Servers::Tasks(Verifier::new(join)), None, HTTP)?;
        Ok(Self { config, checks_host: false })
    }

    /// Returns the client that trusts the authorities in a PEM file, as browsers do: the certificate of the
    /// other end must name its host.
    ///
    /// # Errors
    /// Returns an error if the file cannot be used.
    pub fn of_authorities(ca: &Path) -> Result<Self, TlsFilesError> {
        let roots = tls_files::roots(ca)?;
        let config = configs::client(Servers::Hosts(roots), None, HTTP);
        let config =
            config.map_err(|error| TlsFilesError::Tls { path: ca.to_owned(), reason: error.to_string() })?;
        Ok(Self { config, checks_host: true })
    }

    /// Performs the handshake of a new connection to `host`, a name or an address. The connection limits the
    /// time itself.
    ///
    /// # Errors
    /// Returns an error if the other end does not show that it is a task of the job, or that it is `host`.
    pub fn connect<S: Read + Write>(
        &self,
        host: &str,
        mut stream: S,
    ) -> Result<HttpsClientStream<S>, IdentityError> {
        let name = if self.checks_host { host } else { NO_NAME };
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(|error| IdentityError::Tls(error.to_string()))?;
        let mut connection = ClientConnection::new(Arc::clone(&self.config), name)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(StreamOwned::new(connection, stream))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::id::{JobName, TaskId};
    use pushpull_messages::observe::unix_time;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, UnixTime};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::authority::{Authority, LIFE};
    use crate::untrusted::Untrusted;

    const PS: TaskId = TaskId::ps(0);

    fn cluster() -> ClusterSpec {
        ClusterSpec::new([(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"])]).unwrap()
    }

    /// Sends a byte from a client of the job to the endpoint of a process.
    async fn send(client: &HttpsClient, to: &HttpsServer) -> Result<(), IdentityError> {
        let (near, far) = duplex(1 << 16);
        let name = ServerName::try_from(NO_NAME).unwrap();
        let (sent, accepted) = tokio::join!(
            async {
                let mut stream = TlsConnector::from(Arc::clone(&client.config)).connect(name, near).await?;
                stream.write_all(b"x").await?;
                stream.flush().await?;
                Ok(())
            },
            to.accept(far)
        );
        if sent.is_ok() {
            let mut stream = accepted.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), b'x');
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(HTTP));
        }
        sent
    }

    fn certify(authority: &Authority, task: &Credentials, made: Duration) {
        let task = task.of_join();
        task.install(authority.certify(&[PS], &[], task.public_key(), made).unwrap()).unwrap();
    }

    #[tokio::test]
    async fn an_endpoint_shows_the_newest_certificate() {
        let authority = Authority::new().unwrap();
        let join = authority.join().clone();
        let ps = Credentials::of_task(join.clone(), cluster(), PS).unwrap();
        let (server, client) = (HttpsServer::new(&ps).unwrap(), HttpsClient::new(&join).unwrap());
        let early = send(&client, &server).await;
        assert!(matches!(early, Err(IdentityError::Untrusted(Untrusted::Chain(1)))), "{early:?}");
        certify(&authority, &ps, unix_time() - LIFE / 2);
        send(&client, &server).await.unwrap();
        let first = ps.shown().unwrap();
        certify(&authority, &ps, unix_time());
        send(&client, &server).await.unwrap();
        assert_ne!(ps.shown().unwrap().cert, first.cert, "the endpoint has the renewed one");
    }

    /// Checks what programs without a join string check: a browser, Prometheus.
    #[test]
    fn an_endpoint_can_be_checked_by_its_host_name() {
        let authority = Authority::new().unwrap();
        let key = crate::certificate::TaskKey::new().unwrap();
        let hosts = ["w0.example", "10.0.0.7", "[2001:db8::7]", "not a name"];
        let chain = authority.certify(&[PS], &hosts, key.public(), unix_time()).unwrap();
        let pem = authority.certificate_pem();
        let anchor = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(anchor).unwrap();
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
            Arc::new(roots),
            crate::provider::provider(),
        );
        let verifier = verifier.build().unwrap();
        let check = |host: &str| {
            let (name, now) = (ServerName::try_from(host.to_owned()).unwrap(), UnixTime::now());
            verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], now)
        };
        for host in ["w0.example", "10.0.0.7", "2001:db8::7"] {
            check(host).unwrap_or_else(|error| panic!("{host}: {error}"));
        }
        for host in ["w1.example", "10.0.0.8", "example"] {
            assert!(check(host).is_err(), "{host}");
        }
    }

    #[tokio::test]
    async fn a_client_trusts_only_the_endpoints_of_its_job() {
        let authority = Authority::new().unwrap();
        let join = authority.join().clone();
        let chief = Credentials::of_chief(authority, cluster(), TaskId::CHIEF).unwrap();
        let server = HttpsServer::new(&chief).unwrap();
        send(&HttpsClient::new(&join).unwrap(), &server).await.unwrap();
        let other = Authority::new().unwrap();
        let refused = send(&HttpsClient::new(other.join()).unwrap(), &server).await;
        assert!(matches!(refused, Err(IdentityError::Untrusted(Untrusted::Authority))), "{refused:?}");
    }
}
