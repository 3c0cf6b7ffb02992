//! Posts requests to a gateway over HTTP, with or without TLS.

use std::time::Duration;

use bytes::Bytes;
use garenne_common::{
    client_tls::{self, CertificateError},
    config::Certificates,
    reloaded::Reloaded,
    text::with_causes,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Uri,
    header::{AUTHORIZATION, HeaderValue, RETRY_AFTER},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use serde::Deserialize;
use tokio::time::timeout;

pub use hyper::{StatusCode, header, header::HeaderMap, http::uri::InvalidUri};

/// Longest wait for an answer. A gateway waits for its confirm for less, so that its answer arrives first.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time to connect, without the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of an answer: the ids of 10,000 readings take less than a tenth.
const MAX_ANSWER: usize = 8 << 20;

/// Posts requests to one path of a gateway.
pub struct GatewayClient {
    /// Another one when a certificate file has changed. Connections of the one before are not used again.
    client: Reloaded<HttpClient>,
    uri: Uri,
}

type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A gateway cannot be posted to.
#[derive(Debug, thiserror::Error)]
pub enum InvalidGateway {
    /// Base and path make no URL.
    #[error(transparent)]
    Url(#[from] InvalidUri),
    /// A certificate file cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// The answer of a gateway.
#[derive(Debug)]
pub struct Answer {
    /// The status of the answer.
    pub status: StatusCode,
    /// When the same request may succeed, if the gateway says so.
    pub retry_after: Option<Duration>,
    /// The body of the answer.
    pub body: Bytes,
}

/// The problem document of a refusal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The reason for people.
    pub detail: String,
    /// The index of the invalid record.
    pub record: Option<usize>,
}

/// There is no answer. The gateway may have taken the request.
#[derive(Debug, thiserror::Error)]
#[error("{uri}: {problem}")]
pub struct NoAnswer {
    uri: Uri,
    problem: String,
}

/// The token has characters that a header cannot have.
#[derive(Debug, thiserror::Error)]
#[error("the token has characters that no header can have")]
pub struct InvalidToken;

impl GatewayClient {
    /// A client of `path` at the gateway `base`, such as `https://gateway.example:8080`. No connection is opened yet.
    /// Certificate files that change are read again before the next request.
    pub fn new(base: &str, path: &str, files: Certificates) -> Result<Self, InvalidGateway> {
        let uri = format!("{}{path}", base.trim_end_matches('/')).parse()?;
        Ok(Self { client: client_tls::reloaded(files, http_client)?, uri })
    }

    /// The URL that requests go to.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Posts a request and waits for its answer for at most 30 seconds.
    pub async fn post(&self, headers: HeaderMap, body: Bytes) -> Result<Answer, NoAnswer> {
        let answer = timeout(TIMEOUT, self.exchange(headers, body)).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")));
        answer.map_err(|problem| NoAnswer { uri: self.uri.clone(), problem })
    }

    async fn exchange(&self, headers: HeaderMap, body: Bytes) -> Result<Answer, String> {
        let mut request = Request::post(self.uri.clone()).body(Full::from(body)).expect("valid parts");
        *request.headers_mut() = headers;
        self.client.refresh();
        let client = self.client.get().clone();
        let answer = client.request(request).await.map_err(|error| with_causes(&error))?;
        let retry_after = answer.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| with_causes(error.as_ref()))?.to_bytes();
        Ok(Answer { status, retry_after: retry_after.map(Duration::from_secs), body })
    }
}

fn http_client(tls: ClientConfig) -> HttpClient {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_nodelay(true);
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(https.wrap_connector(tcp))
}

impl Answer {
    /// The problem document of a refusal; empty if the body is none.
    pub fn problem(&self) -> Problem {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Adds the header that authenticates with `token`.
pub fn authorize(headers: &mut HeaderMap, token: &str) -> Result<(), InvalidToken> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| InvalidToken)?;
    value.set_sensitive(true);
    headers.insert(AUTHORIZATION, value);
    Ok(())
}
