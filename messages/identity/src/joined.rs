//! The identity of a process with a join string: its key, and its certificate once it has enrolled. One
//! process of the cluster also has the authority: that of the chief, or the first server of sessions.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::observe::unix_time;
use rustls::ConnectionCommon;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync;
use tokio_rustls::{client, server};

use crate::authority::{Authority, LIFE};
use crate::certificate::{TaskCertificate, TaskKey, names};
use crate::enrolment::{Channel, EnrolmentError, Grants, ask, grant};
use crate::error::{IdentityError, wrong_task};
use crate::handshake::{handshake, limited};
use crate::join_string::JoinString;
use crate::place::Place;
use crate::settings::{Ends, Settings};
use crate::verifier::Verifier;

/// The identity of a process with a join string.
pub(crate) struct Joined {
    pub(crate) join: JoinString,
    pub(crate) place: Place,
    verifier: Verifier,
    key: TaskKey,
    /// `None` except in one process of the cluster.
    authority: Option<Authority>,
    current: Mutex<Arc<Settings>>,
    /// Held while this task enrols, so that it enrols once and not once for each connection.
    enrolling: sync::Mutex<()>,
}

impl Joined {
    pub(crate) fn without_authority(join: JoinString, place: Place) -> Result<Self, IdentityError> {
        let (key, verifier) = (TaskKey::new()?, Verifier::new(&join));
        let current = Settings::of_task(&key, &verifier, None)?;
        Ok(Self::with(join, verifier, place, key, None, current))
    }

    pub(crate) fn with_authority(authority: Authority, place: Place) -> Result<Self, IdentityError> {
        let (key, join) = (TaskKey::new()?, authority.join().clone());
        let verifier = Verifier::new(&join);
        let current = Settings::of_authority(certify(&authority, &place, &key)?, &verifier)?;
        Ok(Self::with(join, verifier, place, key, Some(authority), current))
    }

    fn with(
        join: JoinString,
        verifier: Verifier,
        place: Place,
        key: TaskKey,
        authority: Option<Authority>,
        current: Settings,
    ) -> Self {
        let (current, enrolling) = (Mutex::new(Arc::new(current)), sync::Mutex::default());
        Self { join, place, verifier, key, authority, current, enrolling }
    }

    pub(crate) fn has_authority(&self) -> bool {
        self.authority.is_some()
    }

    /// Enrols, as [`Credentials::enrol`](crate::Credentials::enrol) says.
    pub(crate) async fn enrol<S, F>(&self, connect: impl FnOnce(String) -> F) -> Result<(), IdentityError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = io::Result<S>>,
    {
        if !self.asks() {
            return Ok(());
        }
        let _turn = self.enrolling.lock().await;
        if !self.asks() {
            return Ok(());
        }
        let (name, address) = (self.place.authority_name(), self.place.authority_address());
        let connected = connect(address.clone());
        let unreachable = |error| IdentityError::NoAuthority { name, address, error };
        let stream = limited(async { connected.await.map_err(unreachable) }).await?;
        self.ask(stream).await
    }

    /// Returns true if this task needs no certificate before it connects: it has one that is still valid, or
    /// it is not one that asks.
    pub(crate) fn is_enrolled(&self) -> bool {
        self.has_authority() || !self.place.asks() || self.is_certified(Duration::ZERO)
    }

    /// Returns true if this task has a certificate from another one, and less than a quarter of its life is
    /// left.
    pub(crate) fn expires_soon(&self) -> bool {
        let certified = self.current.lock().certified.is_some();
        certified && !self.has_authority() && !self.is_certified(LIFE / 4)
    }

    /// Returns whether this task has to ask for a certificate now.
    fn asks(&self) -> bool {
        !self.has_authority() && self.place.asks() && !self.is_certified(LIFE / 2)
    }

    /// Returns whether this task has a certificate that is valid after `later`.
    fn is_certified(&self, later: Duration) -> bool {
        let current = self.current.lock().clone();
        let chain = current.certified.as_ref().map(|certified| &certified.chain);
        chain.is_some_and(|chain| self.verifier.check(chain, unix_time() + later).is_ok())
    }

    /// Asks the task at the other end of a new connection for a certificate.
    async fn ask<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Result<(), IdentityError> {
        let mut stream = self.dial_enrolment(stream).await?;
        let channel = self.authority_channel(stream.get_ref().1)?;
        self.ask_on(&mut stream, channel).await
    }

    /// Performs the handshake of an enrolment on a new connection.
    async fn dial_enrolment<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<client::TlsStream<S>, IdentityError> {
        let config = Arc::clone(&enrolment(&*self.current()?)?.client);
        handshake(config, stream).await.map_err(|error| match error {
            // Every task with a join string enrols others, or is enrolled.
            IdentityError::PeerHasNone => IdentityError::NotEnrolling,
            error => error,
        })
    }

    /// Asks on a connection whose other end has proved that it has the authority.
    async fn ask_on(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        channel: Channel,
    ) -> Result<(), IdentityError> {
        let Self { join, place, key, .. } = self;
        let asked = async { Ok(ask(stream, channel, join, place.task(), key.public()).await?) };
        let chain = limited(asked).await?;
        // A worker with a ps task asks, while the chief connects to the ps task: the second certificate is no
        // news.
        let is_news = !self.is_certified(LIFE / 2);
        self.install(chain)?;
        if is_news {
            tracing::info!("{} has given this task a certificate", place.authority_name());
        }
        Ok(())
    }

    /// Uses a certificate from now on, which must name this task.
    pub(crate) fn install(&self, chain: Vec<CertificateDer<'static>>) -> Result<(), IdentityError> {
        let Self { verifier, place, key, current, .. } = self;
        let tasks = verifier.check(&chain, unix_time())?;
        if !tasks.contains(&place.task()) {
            return Err(wrong_task(place.task(), &tasks));
        }
        *current.lock() = Arc::new(Settings::of_task(key, verifier, Some(chain))?);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn public_key(&self) -> &[u8] {
        self.key.public()
    }

    /// Returns whether the other end needs a new certificate from this process.
    pub(crate) fn must_renew<D>(&self, peer: &ConnectionCommon<D>) -> bool {
        self.has_authority() && self.verifier.check_connection(peer, LIFE / 2).is_err()
    }

    /// Gives the task at the other end of a new connection a certificate.
    pub(crate) async fn enrol_peer<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(), IdentityError> {
        let mut stream = self.dial_enrolment(stream).await?;
        let channel = Channel::of(stream.get_ref().1)?;
        self.grant_on(&mut stream, channel).await
    }

    async fn grant_on(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        channel: Channel,
    ) -> Result<(), IdentityError> {
        let Self { authority, place, .. } = self;
        let authority = authority.as_ref().ok_or(EnrolmentError::Message("this task grants nothing"))?;
        let grants = Grants { authority, place, now: unix_time() };
        let tasks = limited(grant(stream, channel, grants)).await?;
        tracing::info!("gave {} a certificate", names(&tasks));
        Ok(())
    }

    /// Enrols the task at the other end or, if this task does not have the authority, itself.
    pub(crate) async fn accept_enrolment<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut stream: server::TlsStream<S>,
    ) -> Result<(), IdentityError> {
        if self.has_authority() {
            let channel = Channel::of(stream.get_ref().1)?;
            self.grant_on(&mut stream, channel).await
        } else {
            let channel = self.authority_channel(stream.get_ref().1)?;
            self.ask_on(&mut stream, channel).await
        }
    }

    /// Returns the current settings. Before that, the process with the authority makes itself a new
    /// certificate if it needs one.
    pub(crate) fn current(&self) -> Result<Arc<Settings>, IdentityError> {
        let Self { authority, place, key, verifier, current, .. } = self;
        if let Some(authority) = authority
            && !self.is_certified(LIFE / 2)
        {
            let renewed = Settings::of_authority(certify(authority, place, key)?, verifier)?;
            *current.lock() = Arc::new(renewed);
        }
        Ok(Arc::clone(&current.lock()))
    }

    /// Returns the number of a connection, if its other end has proved that it has the authority.
    fn authority_channel<D>(&self, peer: &ConnectionCommon<D>) -> Result<Channel, IdentityError> {
        let tasks = self.verifier.check_connection(peer, Duration::ZERO)?;
        let authority = self.place.authority();
        if !tasks.contains(&authority) {
            return Err(wrong_task(authority, &tasks));
        }
        Ok(Channel::of(peer)?)
    }
}

fn enrolment(current: &Settings) -> Result<&Ends, IdentityError> {
    Ok(current.enrolment.as_ref().ok_or(EnrolmentError::Message("this task does not enrol"))?)
}

/// Makes the certificate of the process that has the authority.
fn certify(authority: &Authority, place: &Place, key: &TaskKey) -> Result<TaskCertificate, IdentityError> {
    let tasks = place.own_tasks().ok_or(EnrolmentError::NotListed(place.task()))?;
    Ok(key.certified(authority.certify(&tasks, &place.hosts_of(&tasks), key.public(), unix_time())?))
}
