//! The HTTP endpoint of a process: what it shows, and when it ends. The socket is in `server`.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::TaskId;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::about::About;
use super::config::EndpointConfig;
use super::server::Server;
use super::views::Views;
use crate::embedded::Observers;
use crate::programs::exposure::Exposure;

/// The HTTP endpoint of a process. It stops answering when it is dropped.
#[derive(Default)]
pub(crate) struct Endpoint {
    views: Views,
    linger: Duration,
    server: Option<Server>,
}

impl Endpoint {
    /// Begins to listen, if the settings name an address.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, or if other hosts could reach the endpoint and nothing
    /// protects it.
    pub(crate) fn bind(config: &EndpointConfig, about: About) -> anyhow::Result<Self> {
        let views = Views::default();
        let about = about.with(config.called_with.settings());
        let start = |address| Server::start(address, config, views.clone(), about);
        let server = config.address.as_deref().map(start).transpose()?;
        if let Some(address) = server.as_ref().and_then(Server::advertised) {
            views.set_http(address.to_owned());
        }
        Ok(Self { views, linger: config.linger, server })
    }

    /// Returns the address at which other hosts can reach the endpoint, as `host:port`, or as
    /// `https://host:port` if it speaks HTTPS; `None` if they cannot reach it.
    pub(crate) fn advertised(&self) -> Option<String> {
        self.views.http()
    }

    /// Logs the endpoint's address. If the process runs the chief (`leads`), also logs the address of the
    /// job's page.
    pub(crate) fn announce(&self, leads: bool) {
        let Some(server) = &self.server else { return };
        let url = server.url();
        tracing::info!("observe this task at {url}");
        if leads {
            tracing::info!("the job's page is {url}/");
        }
        if server.is_unprotected() {
            tracing::warn!("everybody who reaches {url} can read it (--insecure)");
        }
    }

    /// Returns true if the endpoint is configured to keep answering after its tasks have ended.
    pub(crate) const fn lingers(&self) -> bool {
        self.server.is_some() && !self.linger.is_zero()
    }

    /// Returns the observers through which tasks are added to the endpoint.
    pub(crate) fn observers(&self) -> Arc<dyn Observers> {
        Arc::new(self.views.clone())
    }

    /// Returns where the process records whether other hosts reach it without a proof of who they are.
    pub(crate) fn exposure(&self) -> Exposure {
        self.views.exposure().clone()
    }

    /// Records that a task ended with an error.
    pub(crate) fn fail(&self, task: TaskId, reason: impl ToString) {
        self.views.fail(task, reason.to_string());
    }

    /// Ends the endpoint after its linger time, or as soon as `interrupt` is cancelled. The caller calls
    /// this function when the tasks have ended.
    pub(crate) async fn close(self, interrupt: &CancellationToken) {
        let Some(server) = self.server else { return };
        if !self.linger.is_zero() && !interrupt.is_cancelled() {
            let (url, seconds) = (server.url(), self.linger.as_secs());
            tracing::info!("the tasks have ended; {url} still answers for {seconds} s, or until a signal");
            tokio::select! {
                () = sleep(self.linger) => {}
                () = interrupt.cancelled() => {}
            }
        }
        server.end().await;
    }
}
