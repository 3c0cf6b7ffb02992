//! Sends readings to a gateway over HTTP, with or without TLS.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use garenne_common::{
    config::Certificates,
    exit::{Exit, Failure},
};
use garenne_gateway_client::{
    GatewayClient, HeaderMap, InvalidGateway, StatusCode, authorize,
    header::{CONTENT_TYPE, HeaderValue},
};
use garenne_protocol::{
    sensor::{KeyedValues, Reading},
    task::TaskId,
};
use secrecy::ExposeSecret;
use serde::Deserialize;

use super::{
    Destination, SendError,
    token::{Token, refused},
    unusable,
};

/// All readings of a request or none: the caller tells an invalid one and sends the others again.
const PATH: &str = "/v1/readings?atomic=true";

/// `POST /v1/readings` of one gateway.
pub(super) struct HttpDestination {
    client: GatewayClient,
    token: Option<Arc<Token>>,
}

#[derive(Deserialize)]
struct Accepted {
    ids: Vec<String>,
}

impl HttpDestination {
    /// A gateway at `base`, such as `https://gateway.example:8080`.
    pub(super) fn new(
        base: &str,
        token: Option<Arc<Token>>,
        certificates: Certificates,
    ) -> Result<Self, Failure> {
        let client = GatewayClient::new(base, PATH, certificates).map_err(|error| match error {
            InvalidGateway::Url(error) => {
                Failure::new(Exit::Usage, format_args!("--to {base} is not a URL: {error}"))
            }
            InvalidGateway::Certificate(error) => unusable(&error),
        })?;
        Ok(Self { client, token })
    }

    async fn post(&self, readings: &[Reading]) -> Result<Vec<TaskId>, SendError> {
        let body = Bytes::from(serde_json::to_vec(readings).expect("readings are plain JSON"));
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        if let Some(token) = &self.token {
            authorize(&mut headers, token.read()?.expose_secret())
                .map_err(|error| SendError::fatal(format!("--token-file: {error}")))?;
        }
        let answer = self.client.post(headers, body).await;
        let answer =
            answer.map_err(|error| SendError::Retry { reason: error.to_string(), retry_after: None })?;
        let (status, retry_after) = (answer.status, answer.retry_after);
        if status == StatusCode::ACCEPTED {
            self.token.iter().for_each(|token| token.accept());
            let ids = serde_json::from_slice::<Accepted>(&answer.body)
                .ok()
                .filter(|it| it.ids.len() == readings.len());
            let ids = ids.and_then(|it| it.ids.iter().map(|id| TaskId::parse(id).ok()).collect());
            return ids.ok_or_else(|| {
                SendError::fatal(format!("{} answered 202 without one id per reading", self.client.uri()))
            });
        }
        let problem = answer.problem();
        let reason = format!("{} {}", status.as_u16(), problem.detail);
        match (status, problem.record) {
            (_, Some(index)) if status.is_client_error() && index < readings.len() => {
                Err(SendError::InvalidReading { index, reason })
            }
            (StatusCode::UNAUTHORIZED, _) => {
                Err(refused(self.token.as_deref(), format!("{} answered {reason}", self.client.uri())))
            }
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => {
                Err(SendError::Retry { reason, retry_after })
            }
            _ if status.is_server_error() => Err(SendError::Retry { reason, retry_after }),
            _ => Err(SendError::fatal(format!("{} answered {reason}", self.client.uri()))),
        }
    }
}

impl Destination for HttpDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(async {
            let mut ids = Vec::with_capacity(readings.len());
            while ids.len() < readings.len() {
                let rest = &readings[ids.len()..];
                let sent = self.post(&rest[..consistent(rest)]).await;
                ids.extend(sent.map_err(|error| error.behind(ids.len()))?);
            }
            Ok(ids)
        })
    }
}

/// How many of the readings can be in one request. A gateway refuses another value for the same device, metric and time,
/// but a recording may have several, of which the worker takes one.
fn consistent(readings: &[Reading]) -> usize {
    let mut values = KeyedValues::default();
    readings.iter().position(|reading| values.add(reading).is_err()).unwrap_or(readings.len())
}

#[cfg(test)]
mod tests {
    use garenne_protocol::sensor::Timestamp;

    use super::*;

    #[test]
    fn a_request_ends_before_another_value_for_the_same_key() {
        let reading = |metric: &str, value: f64| Reading {
            device: "d".into(),
            metric: metric.into(),
            value,
            unit: None,
            counter: None,
            time: Timestamp::UNIX_EPOCH,
        };
        let readings = [reading("a", 1.0), reading("b", 2.0), reading("a", 1.0), reading("a", 3.0)];
        assert_eq!((consistent(&readings), consistent(&readings[3..])), (3, 1));
        let invalid = |index| SendError::InvalidReading { index, reason: String::new() };
        assert!(matches!(invalid(2).behind(3), SendError::InvalidReading { index: 5, .. }));
    }
}
