//! The HTTP client of the span exporter, on the program's own tokio runtime.
//!
//! The exporter calls it from its own thread, which has no runtime. The clients that opentelemetry-otlp offers add a
//! second TLS provider or HTTP/2.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_http::{HttpClient, HttpError};
use rustls::crypto::ring;
use tokio::runtime::Handle;

use crate::{lock::lock, supervise, text::with_causes};

/// Most bytes of a response body that are read; a regular one holds a count and a message.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Posts batches of spans to the collector.
#[derive(Debug)]
pub(super) struct CollectorClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
    runtime: Handle,
    /// The cause of the last failure, which the exporter does not report.
    pub(super) problem: LastProblem,
}

/// Why the last request failed; `None` after a success. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LastProblem(Arc<Mutex<Option<String>>>);

impl LastProblem {
    fn set(&self, problem: Option<String>) {
        *lock(&self.0) = problem;
    }

    pub(super) fn take(&self) -> Option<String> {
        lock(&self.0).take()
    }
}

impl CollectorClient {
    /// A client that trusts the system's certificate authorities, which are loaded only if `secure`.
    pub(super) fn new(secure: bool, timeout: Duration, runtime: Handle) -> Result<Self, String> {
        let provider = ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let connector = if secure {
            let builder = builder.with_provider_and_native_roots(provider);
            builder.map_err(|error| format!("cannot load this system's certificate authorities: {error}"))?
        } else {
            let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
            let config = config.with_safe_default_protocol_versions().expect("ring knows them");
            let no_roots = rustls::RootCertStore::empty();
            builder.with_tls_config(config.with_root_certificates(no_roots).with_no_client_auth())
        };
        let connector = connector.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { client, timeout, runtime, problem: LastProblem::default() })
    }
}

impl HttpClient for CollectorClient {
    fn send_bytes<'this, 'answer>(
        &'this self,
        request: Request<Bytes>,
    ) -> BoxFuture<'answer, Result<Response<Bytes>, HttpError>>
    where
        'this: 'answer,
        Self: 'answer,
    {
        let (client, timeout, problem) = (self.client.clone(), self.timeout, self.problem.clone());
        let sending = supervise::isolated("span export", async move {
            match tokio::time::timeout(timeout, exchange(client, request)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {timeout:?}").into()),
            }
        });
        let sending = sending.spawn_on(&self.runtime);
        Box::pin(async move {
            let answer = sending.await.unwrap_or_else(|failure| Err(failure.into()));
            problem.set(match &answer {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(format!("the collector answers {}", answer.status())),
                // hyper's own text does not contain the causes.
                Err(error) => Some(with_causes(error.as_ref())),
            });
            answer
        })
    }
}

async fn exchange(
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
    // The status decides: a body that is too long or truncated does not make the exporter send the batch again.
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map(|body| body.to_bytes());
    let body = body.unwrap_or_default();
    Ok(Response::from_parts(head, body))
}
