//! A receiver of webhooks that sends the given answers and then 200.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::wait::{Seen, eventually};

/// Status and further header lines of an answer.
pub type Answer = (u16, &'static str);

/// A receiver on the loopback interface. It stops when the value is dropped.
#[derive(Debug)]
pub struct Webhook {
    url: String,
    accepted: Arc<Mutex<Vec<Value>>>,
    requests: Arc<Mutex<usize>>,
    serving: JoinHandle<()>,
}

impl Webhook {
    /// Starts a receiver with its first answers.
    pub async fn start(answers: impl IntoIterator<Item = Answer>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/hook", listener.local_addr()?);
        let (accepted, requests): (Arc<Mutex<Vec<Value>>>, Arc<Mutex<usize>>) = Default::default();
        let mut answers: VecDeque<_> = answers.into_iter().collect();
        let (kept, counted) = (Arc::clone(&accepted), Arc::clone(&requests));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                let answer = answers.pop_front().unwrap_or((200, ""));
                if let Ok(alerts) = serve(stream, answer).await
                    && answer.0 < 300
                {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).extend(alerts);
                }
            }
        });
        Ok(Self { url, accepted, requests, serving })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The accepted alerts in order: those of requests that were answered with success.
    #[must_use]
    pub fn alerts(&self) -> Vec<Value> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of received requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this many alerts were accepted.
    pub async fn until_alerts(&self, count: usize) -> Result<Vec<Value>> {
        eventually(format!("{count} alerts"), async || {
            let alerts = self.alerts();
            Ok(Seen::when(alerts.len() >= count, format_args!("{alerts:?}")))
        })
        .await?;
        Ok(self.alerts())
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Reads one request, answers it, and returns its alerts.
async fn serve(mut stream: TcpStream, (status, headers): Answer) -> Result<Vec<Value>> {
    let mut bytes = Vec::new();
    let body = loop {
        anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "the request is truncated");
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        if body.len() >= length.parse()? {
            break body.to_owned();
        }
    };
    stream.write_all(format!("HTTP/1.1 {status} X\r\n{headers}content-length: 0\r\n\r\n").as_bytes()).await?;
    let body: Value = serde_json::from_str(&body)?;
    Ok(body["data"]["alerts"].as_array().cloned().unwrap_or_default())
}
