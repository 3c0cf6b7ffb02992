//! Sends readings to a gateway over HTTP, with or without TLS.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use garenne_common::{
    exit::{Exit, Failure},
    text::with_causes,
};
use garenne_protocol::{sensor::Reading, task::TaskId};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use serde::Deserialize;
use tokio::time::timeout;

use super::{Destination, SendError};

/// `POST /v1/readings` of one gateway.
pub(super) struct HttpDestination {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
}

/// Longer than the gateway waits for a confirm, so that the gateway's answer arrives first.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time to connect, without the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of an answer: the ids of 10,000 readings take less than a tenth.
const MAX_ANSWER: usize = 8 << 20;

#[derive(Deserialize)]
struct Accepted {
    ids: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    detail: String,
    record: Option<usize>,
}

impl HttpDestination {
    /// A gateway at `base`, such as `https://gateway.example:8080`.
    ///
    /// # Errors
    /// The URL is invalid, or the token has characters that a header cannot have.
    pub(super) fn new(base: &str, token: Option<String>, tls: ClientConfig) -> Result<Self, Failure> {
        let usage = |problem: String| Failure::new(Exit::Usage, problem);
        let uri: Uri = format!("{}/v1/readings", base.trim_end_matches('/'))
            .parse()
            .map_err(|error| usage(format!("--to {base} is not a URL: {error}")))?;
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        if let Some(token) = token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                usage("--token-file: the token has characters that no header can have".to_owned())
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_nodelay(true);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(https.wrap_connector(tcp));
        Ok(Self { client, uri, headers })
    }

    /// Posts the body. Returns the answer's status, its `Retry-After` and its body, or why there is no answer.
    async fn exchange(&self, body: Vec<u8>) -> Result<(StatusCode, Option<Duration>, Bytes), String> {
        let mut request = Request::post(self.uri.clone()).body(Full::from(body)).expect("valid parts");
        *request.headers_mut() = self.headers.clone();
        let answer = self.client.request(request).await.map_err(|error| with_causes(&error))?;
        let retry_after = answer.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| with_causes(error.as_ref()))?;
        Ok((status, retry_after.map(Duration::from_secs), body.to_bytes()))
    }

    async fn post(&self, readings: &[Reading]) -> Result<Vec<TaskId>, SendError> {
        let body = serde_json::to_vec(readings).expect("readings are plain JSON");
        let answer = timeout(TIMEOUT, self.exchange(body)).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")));
        let (status, retry_after, body) = answer.map_err(|reason| SendError::Retry {
            reason: format!("{}: {reason}", self.uri),
            retry_after: None,
        })?;
        if status == StatusCode::ACCEPTED {
            let ids =
                serde_json::from_slice::<Accepted>(&body).ok().filter(|it| it.ids.len() == readings.len());
            let ids = ids.and_then(|it| it.ids.iter().map(|id| TaskId::parse(id).ok()).collect());
            return ids.ok_or_else(|| {
                SendError::fatal(format!("{} answered 202 without one id per reading", self.uri))
            });
        }
        let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        let reason = format!("{} {}", status.as_u16(), problem.detail);
        match (status, problem.record) {
            (_, Some(index)) if status.is_client_error() && index < readings.len() => {
                Err(SendError::InvalidReading { index, reason })
            }
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => {
                Err(SendError::Retry { reason, retry_after })
            }
            _ if status.is_server_error() => Err(SendError::Retry { reason, retry_after }),
            _ => Err(SendError::fatal(format!("{} answered {reason}", self.uri))),
        }
    }
}

impl Destination for HttpDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(self.post(readings))
    }
}
