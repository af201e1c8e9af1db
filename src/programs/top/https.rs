//! HTTPS for `pushpull top`: connections to the endpoints of a job's tasks, which prove that they belong to
//! the job. This module must not depend on snapshots.

use std::fmt;

use pushpull_identity::{HttpsClient, HttpsClientStream};
use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// Secures connections with TLS if their URL demands it.
#[derive(Debug)]
pub(super) struct HttpsConnector(pub(super) HttpsClient);

impl<In: Transport> Connector<In> for HttpsConnector {
    type Out = Either<In, HttpsTransport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let mut below = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        below.set_timeout(details.timeout);
        let host = details.uri.host().unwrap_or_default();
        let stream = self.0.connect(host, below).map_err(|error| Error::Other(error.into()))?;
        let buffers =
            LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(HttpsTransport { buffers, stream })))
    }
}

/// A connection with TLS.
pub(super) struct HttpsTransport {
    buffers: LazyBuffers,
    stream: HttpsClientStream<TransportAdapter>,
}

impl fmt::Debug for HttpsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpsTransport")
    }
}

impl Transport for HttpsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        use std::io::Write as _;

        self.stream.get_mut().set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        self.stream.write_all(output)?;
        Ok(self.stream.flush()?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        use std::io::Read as _;

        self.stream.get_mut().set_timeout(timeout);
        let input = self.buffers.input_append_buf();
        let amount = self.stream.read(input)?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
