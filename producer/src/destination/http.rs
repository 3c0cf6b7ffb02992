//! Sends readings to a gateway over HTTP.

use std::time::Duration;

use futures_util::future::BoxFuture;
use garenne_common::exit::{Exit, Failure};
use garenne_protocol::{sensor::Reading, task::TaskId};
use reqwest::{StatusCode, header};
use serde::Deserialize;

use super::{Destination, SendError};

/// `POST /v1/readings` of one gateway.
pub(super) struct HttpDestination {
    client: reqwest::Client,
    url: String,
    token: Option<String>,
}

/// Longer than the gateway waits for a confirm, so that the gateway's answer arrives first.
const TIMEOUT: Duration = Duration::from_secs(30);

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
    /// A gateway at `base`, such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// The URL is invalid.
    pub(super) fn new(base: &str, token: Option<String>) -> Result<Self, Failure> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .connect_timeout(Duration::from_secs(5))
            .build()
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot create an HTTP client: {error}")))?;
        let url = format!("{}/v1/readings", base.trim_end_matches('/'));
        reqwest::Url::parse(&url)
            .map_err(|error| Failure::new(Exit::Usage, format!("--to {base} is not a URL: {error}")))?;
        Ok(Self { client, url, token })
    }

    async fn post(&self, readings: &[Reading]) -> Result<Vec<TaskId>, SendError> {
        let body = serde_json::to_vec(readings).expect("readings are plain JSON");
        let mut request = self.client.post(&self.url).header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        // The alternate form contains all causes.
        let again = |error: reqwest::Error| SendError::Retry {
            reason: format!("{:#}", anyhow::Error::from(error)),
            retry_after: None,
        };
        let response = request.body(body).send().await.map_err(again)?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let text = response.bytes().await.map_err(again)?;
        if status == StatusCode::ACCEPTED {
            let ids =
                serde_json::from_slice::<Accepted>(&text).ok().filter(|it| it.ids.len() == readings.len());
            let ids = ids.and_then(|it| it.ids.iter().map(|id| TaskId::parse(id).ok()).collect());
            return ids.ok_or_else(|| {
                SendError::fatal(format!("{} answered 202 without one id per reading", self.url))
            });
        }
        let problem: Problem = serde_json::from_slice(&text).unwrap_or_default();
        let reason = format!("{} {}", status.as_u16(), problem.detail);
        match (status, problem.record) {
            (_, Some(index)) if status.is_client_error() && index < readings.len() => {
                Err(SendError::InvalidReading { index, reason })
            }
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => {
                Err(SendError::Retry { reason, retry_after })
            }
            _ if status.is_server_error() => Err(SendError::Retry { reason, retry_after }),
            _ => Err(SendError::fatal(format!("{} answered {reason}", self.url))),
        }
    }
}

impl Destination for HttpDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(self.post(readings))
    }
}
