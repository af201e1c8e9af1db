//! A separate thread sends the timeline of a job to an OpenTelemetry collector, so that a slow or
//! unreachable collector does not delay the job. `otel_span` decides which spans form a trace.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use pushpull_messages::observe::SpanSpec;
use tracing::{info, warn};

use super::otel_span::OtelSpans;
use super::spool::{Spool, SpoolReader};
use crate::error::ChiefError;
use crate::hook::Hook;
use crate::report::JobEnd;

/// The time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a response, in bytes.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// The reason why spans cannot be sent to a collector.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint is not a plain HTTP address.
    #[error(
        "endpoint '{0}' is invalid: expected http://host:port, such as http://127.0.0.1:4318; for https, use a collector on this host that forwards the spans"
    )]
    Endpoint(String),
    /// The exporter of the spans could not be built.
    #[error("spans cannot be sent to {endpoint}: {reason}")]
    Exporter {
        /// The address of the collector.
        endpoint: String,
        /// The error of the exporter.
        reason: String,
    },
}

/// A hook that sends the spans of traced steps by OTLP over HTTP. All spans of a step, including those of
/// its pushes, form one trace.
///
/// Spans that cannot be sent are counted and logged; the training goes on.
#[derive(Debug)]
pub struct Otlp {
    endpoint: String,
    exporter: Option<SpanExporter>,
    spool: Option<Spool>,
}

impl Otlp {
    /// Creates the hook for a collector at an endpoint such as `http://127.0.0.1:4318`; `/v1/traces` is
    /// appended if it is missing.
    ///
    /// # Errors
    /// Returns an error if the endpoint is not a plain HTTP address.
    pub fn new(endpoint: &str) -> Result<Self, OtlpError> {
        let host = endpoint.strip_prefix("http://").filter(|host| !host.is_empty() && !host.starts_with('/'));
        if host.is_none() {
            return Err(OtlpError::Endpoint(endpoint.to_owned()));
        }
        let base = endpoint.trim_end_matches('/');
        let endpoint = match base.ends_with("/v1/traces") {
            true => base.to_owned(),
            false => format!("{base}/v1/traces"),
        };
        let agent = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Http(agent.build().new_agent()))
            .with_endpoint(&endpoint)
            .with_timeout(TIMEOUT)
            .build();
        match exporter {
            Ok(mut exporter) => {
                exporter.set_resource(&Resource::builder().with_service_name("pushpull").build());
                Ok(Self { endpoint, exporter: Some(exporter), spool: None })
            }
            Err(error) => Err(OtlpError::Exporter { endpoint, reason: error.to_string() }),
        }
    }
}

impl Hook for Otlp {
    fn clock(&mut self, began: SystemTime) {
        let Some(exporter) = self.exporter.take() else { return };
        match Spool::start("traces", move |spooled| send_all(&exporter, began, &spooled)) {
            Ok(spool) => self.spool = Some(spool),
            Err(error) => warn!(%error, "could not start a thread, so no traces are sent"),
        }
    }

    fn spans(&mut self, spans: &[SpanSpec]) {
        if let Some(spool) = &self.spool {
            spool.send(spans);
        }
    }

    fn end(&mut self, _: Result<&JobEnd, &ChiefError>) {
        if let Some(spool) = self.spool.take()
            && spool.end() == 0
        {
            info!(endpoint = self.endpoint, "traces were sent");
        }
    }
}

/// Sends spans until the spool is closed.
fn send_all(exporter: &SpanExporter, began: SystemTime, spooled: &SpoolReader) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            while let Some(spans) = spooled.next() {
                spooled.lose(spans.len(), &error);
            }
            return;
        }
    };
    let mut own = OtelSpans::new(began);
    while let Some(spans) = spooled.next() {
        if let Err(error) = runtime.block_on(exporter.export(own.of(&spans))) {
            spooled.lose(spans.len(), &error);
        }
    }
}

/// An HTTP client that blocks its thread. The thread has no other work.
#[derive(Debug)]
struct Http(ureq::Agent);

#[async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, mut body) = self.0.run(request.map(|body| body.to_vec()))?.into_parts();
        let response = body.with_config().limit(RESPONSE_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(parts, response.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};

    use pushpull_messages::id::GlobalStep;

    use super::super::spool::tests::one_push;
    use super::*;

    /// Starts a collector that answers one request with `status`. Returns the collector's endpoint, and a
    /// receiver for the request's first line and body.
    fn collector(status: &'static str) -> (String, Receiver<(String, Vec<u8>)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, received) = channel();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(socket.try_clone().unwrap());
            let (mut first, mut length) = (String::new(), 0);
            reader.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                match line.to_ascii_lowercase().split_once(':') {
                    Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                    Some(_) => {}
                    None => break,
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            socket.write_all(answer.as_bytes()).unwrap();
            sender.send((first, body)).unwrap();
        });
        (endpoint, received)
    }

    fn contains(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|part| part == text.as_bytes())
    }

    #[test]
    fn spans_are_posted_to_a_collector() {
        let (endpoint, received) = collector("200 OK");
        let mut hook = Otlp::new(&endpoint).unwrap();
        hook.clock(SystemTime::now());
        hook.spans(&one_push());
        let (first, body) = received.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(first.trim_end(), "POST /v1/traces HTTP/1.1");
        for text in
            ["compute", "push", "apply", "pushpull.task", "worker/1", "to ps/0/shard/1", "service.name"]
        {
            assert!(contains(&body, text), "{text}");
        }
        hook.end(Err(&ChiefError::NoWorkers {
            step: GlobalStep(1),
            last_step: GlobalStep(2),
            gave_up: None,
        }));
    }

    #[test]
    fn rejected_spans_are_counted() {
        let (endpoint, received) = collector("400 Bad Request");
        let mut hook = Otlp::new(&format!("{endpoint}/v1/traces/")).unwrap();
        hook.clock(SystemTime::now());
        hook.spans(&one_push());
        assert!(received.recv_timeout(Duration::from_secs(60)).unwrap().0.starts_with("POST /v1/traces "));
        assert_eq!(hook.spool.take().unwrap().end(), 8);
    }

    #[test]
    fn an_endpoint_is_plain_http() {
        for endpoint in ["https://collector:4318", "collector:4318", "http://", "http:///x", ""] {
            let error = Otlp::new(endpoint).unwrap_err().to_string();
            assert!(
                error.contains(&format!("'{endpoint}' is invalid: expected http://host:port")),
                "{error}"
            );
        }
    }
}
