//! What carries batches to the collector: a small HTTP client on a runtime that is there anyway.
//!
//! Own glue around hyper's client, because the exporter calls from a thread of its own, where no runtime is,
//! and the clients that come with it bring a second TLS provider or HTTP/2.

use std::{
    sync::{Arc, Mutex, PoisonError},
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

/// How much of an answer is read: it holds a count and a sentence.
const LARGEST_ANSWER: usize = 64 * 1024;

/// Posts batches.
#[derive(Debug)]
pub(super) struct Post {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
    runtime: Handle,
    /// What the last failure was, which the exporter does not pass on.
    problem: Problem,
}

/// Why the collector could not be had, in words.
#[derive(Clone, Debug, Default)]
pub(super) struct Problem(Arc<Mutex<Option<String>>>);

impl Problem {
    fn is(&self, words: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Post {
    /// Trusts the system's certificate authorities, which are looked for only where `https` is asked for.
    pub(super) fn new(secure: bool, timeout: Duration, runtime: Handle) -> Result<Self, String> {
        let provider = ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let connector = if secure {
            let builder = builder.with_provider_and_native_roots(provider);
            builder.map_err(|error| format!("no certificate authorities on this system: {error}"))?
        } else {
            let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
            let config = config.with_safe_default_protocol_versions().expect("ring knows them");
            let nobody = rustls::RootCertStore::empty();
            builder.with_tls_config(config.with_root_certificates(nobody).with_no_client_auth())
        };
        let connector = connector.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { client, timeout, runtime, problem: Problem::default() })
    }

    pub(super) fn problem(&self) -> Problem {
        self.problem.clone()
    }
}

impl HttpClient for Post {
    fn send_bytes<'this, 'answer>(
        &'this self,
        request: Request<Bytes>,
    ) -> BoxFuture<'answer, Result<Response<Bytes>, HttpError>>
    where
        'this: 'answer,
        Self: 'answer,
    {
        let (client, timeout, problem) = (self.client.clone(), self.timeout, self.problem.clone());
        let sending = self.runtime.spawn(async move {
            match tokio::time::timeout(timeout, exchange(client, request)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {timeout:?}").into()),
            }
        });
        Box::pin(async move {
            let answer = sending.await.unwrap_or_else(|error| Err(error.into()));
            problem.is(match &answer {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(format!("it answers {}", answer.status())),
                Err(error) => Some(explained(error.as_ref())),
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
    // The status is the answer: a body that is too long or breaks off does not make it send all again.
    let body = Limited::new(body, LARGEST_ANSWER).collect().await.map(|body| body.to_bytes());
    let body = body.unwrap_or_default();
    Ok(Response::from_parts(head, body))
}

/// The cause and not only that there was one.
fn explained(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
