//! A push of one step to all shards with the pull of the next values, while it is in flight. This module must
//! not depend on shards.

use tokio::task::JoinHandle;
use tracing::Instrument;

use super::error::ClientError;
use super::exchange::Exchange;

/// A push of one step to all shards, with the pull of the next values, whose replies may still be to come. It
/// goes on by itself, whether it is awaited or not. If it is dropped, its pushes are not sent again, and
/// their replies are ignored.
#[derive(Debug)]
#[must_use = "an exchange that is dropped is given up"]
pub struct ExchangeInFlight(JoinHandle<Result<Exchange, ClientError>>);

impl ExchangeInFlight {
    /// Runs `exchange` on the current tokio runtime.
    pub(super) fn spawn(
        exchange: impl Future<Output = Result<Exchange, ClientError>> + Send + 'static,
    ) -> Self {
        Self(tokio::spawn(exchange.in_current_span()))
    }

    /// Returns true if all replies have arrived, or if the exchange has failed.
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the replies of all shards, and returns the exchange. A wait that is dropped loses nothing.
    ///
    /// # Errors
    /// If a shard has refused the push, or cannot be reached.
    ///
    /// # Panics
    /// If it is called again after it has returned.
    pub async fn wait(&mut self) -> Result<Exchange, ClientError> {
        match (&mut self.0).await {
            Ok(result) => result,
            // The task is aborted only when this object is dropped, so it has panicked.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl Drop for ExchangeInFlight {
    fn drop(&mut self) {
        self.0.abort();
    }
}
