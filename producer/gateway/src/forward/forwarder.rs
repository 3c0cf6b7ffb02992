//! Sends tasks to a central gateway.

use std::{io::Write, path::PathBuf};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::future::BoxFuture;
use garenne_common::config::{Certificates, ConfigError, read_secret_file};
use garenne_gateway_client::{
    GatewayClient, HeaderMap, InvalidGateway, InvalidToken, NoAnswer, StatusCode, authorize,
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue},
};
use garenne_protocol::task::NewTask;
use garenne_publish::{Answered, Forward, ForwardError};
use prometheus::IntGauge;
use secrecy::ExposeSecret;
use thiserror::Error;

use super::{Forwarded, JsonTask, PATH, Rejected};

/// Why no task of a request is known to be stored. Sending all of them again has no second effect.
#[derive(Debug, Error)]
enum NotForwarded {
    /// The token file cannot be read.
    #[error(transparent)]
    Token(#[from] ConfigError),
    /// The token cannot be sent.
    #[error(transparent)]
    InvalidToken(#[from] InvalidToken),
    /// The central gateway did not answer.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// It refused the request.
    #[error("the central gateway answered {status}: {detail}")]
    Refused {
        status: StatusCode,
        /// The reason that it gave.
        detail: String,
    },
}

impl NotForwarded {
    /// Whether it lasts until an operator changes a setting or a file of this gateway or the central one.
    fn needs_operator(&self) -> bool {
        match self {
            Self::Token(_) | Self::InvalidToken(_) => true,
            Self::NoAnswer(_) => false,
            Self::Refused { status, .. } => {
                let may_pass = [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT];
                status.is_client_error() && !may_pass.contains(status)
            }
        }
    }
}

/// Sends tasks to a central gateway.
pub(crate) struct Forwarder {
    client: GatewayClient,
    token_file: Option<PathBuf>,
    /// 1 while the central gateway confirms.
    connected: IntGauge,
}

impl Forwarder {
    /// Forwards to the gateway `base`.
    pub(crate) fn new(
        base: &str,
        token_file: Option<PathBuf>,
        certificates: Certificates,
        connected: IntGauge,
    ) -> Result<Self, InvalidGateway> {
        let client = GatewayClient::new(base, PATH, certificates)?;
        connected.set(0);
        Ok(Self { client, token_file, connected })
    }

    /// As [`Forward::forward`]. Tasks that are too large for one request, or too many for the sender's rate, are halved;
    /// what is stored is not sent again, because it would use up the rate for what follows.
    async fn send(&self, mut tasks: &[NewTask]) -> Result<(usize, Vec<Rejected>), NotForwarded> {
        loop {
            match self.post(tasks).await {
                Err(NotForwarded::Refused { status: StatusCode::PAYLOAD_TOO_LARGE, detail }) => {
                    if tasks.len() == 1 {
                        return Ok((1, vec![Rejected { record: 0, code: "too-large".to_owned(), detail }]));
                    }
                    tasks = &tasks[..tasks.len() / 2];
                }
                answer => return answer.map(|rejected| (tasks.len(), rejected)),
            }
        }
    }

    async fn post(&self, tasks: &[NewTask]) -> Result<Vec<Rejected>, NotForwarded> {
        let mut rejected = Vec::new();
        let mut sent = Vec::with_capacity(tasks.len());
        let mut indexes = Vec::with_capacity(tasks.len());
        for (index, task) in tasks.iter().enumerate() {
            match JsonTask::of(task) {
                Ok(task) => {
                    sent.push(task);
                    indexes.push(index);
                }
                Err(error) => rejected.push(Rejected {
                    record: index,
                    code: "malformed".to_owned(),
                    detail: format!("payload: {error}"),
                }),
            }
        }
        if sent.is_empty() {
            return Ok(rejected);
        }
        let mut headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (CONTENT_ENCODING, HeaderValue::from_static("gzip")),
        ]);
        if let Some(file) = &self.token_file {
            authorize(&mut headers, read_secret_file("forward.token_file", file)?.expose_secret())?;
        }
        let answer = self.client.post(headers, compressed(&sent)).await?;
        let refused = |detail| NotForwarded::Refused { status: answer.status, detail };
        if answer.status != StatusCode::ACCEPTED {
            return Err(refused(answer.problem().detail));
        }
        let outcome = serde_json::from_slice::<Forwarded>(&answer.body).ok();
        let outcome = outcome.filter(|outcome| outcome.is_of(sent.len())).ok_or_else(|| {
            refused(format!("not the outcome of {} tasks; is this a gateway of Garenne?", sent.len()))
        })?;
        let refused = outcome.rejected.into_iter();
        rejected.extend(refused.map(|it| Rejected { record: indexes[it.record], ..it }));
        Ok(rejected)
    }
}

impl Forward for Forwarder {
    fn forward<'t>(&'t self, tasks: &'t [NewTask]) -> BoxFuture<'t, Result<Answered, ForwardError>> {
        Box::pin(async move {
            let answer = self.send(tasks).await;
            self.connected.set(i64::from(answer.is_ok()));
            match answer {
                Ok((tasks, rejected)) => {
                    let rejected = rejected.into_iter().map(|it| (it.record, it.detail)).collect();
                    Ok(Answered { tasks, rejected })
                }
                Err(error) => {
                    Err(ForwardError { problem: error.to_string(), needs_operator: error.needs_operator() })
                }
            }
        })
    }
}

fn compressed(tasks: &[JsonTask<'_>]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    serde_json::to_writer(&mut encoder, tasks).expect("tasks are JSON, and memory takes every byte");
    encoder.flush().expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte").into()
}
