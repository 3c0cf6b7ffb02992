//! A receiver of webhooks on the loopback interface that follows a script, one step per connection.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::alert::webhook_sender::lock;
use Reaction::{Answer, Drip, Flood, Reset, Stall};

/// The server's reaction to a request.
#[derive(Clone, Copy)]
pub(super) enum Reaction {
    /// Answers with this status and these header lines.
    Answer(u16, &'static str),
    /// Reads the request and never answers.
    Stall,
    /// Resets the connection.
    Reset,
    /// Answers 200, a byte every few milliseconds.
    Drip,
    /// Sends headers and body without end.
    Flood,
}

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) head: String,
    pub(super) body: String,
}

impl ReceivedRequest {
    pub(super) fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_default()
    }

    pub(super) fn alerts(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["data"]["alerts"].as_array().unwrap().clone()
    }
}

pub(super) struct Server {
    pub(super) url: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Server {
    /// Follows the script, one reaction per connection, then answers 200.
    pub(super) async fn start(script: impl IntoIterator<Item = Reaction>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?token=t", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let mut script: VecDeque<_> = script.into_iter().collect();
        let recorded = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let reaction = script.pop_front().unwrap_or(Answer(200, ""));
                tokio::spawn(serve(stream, reaction, Arc::clone(&recorded)));
            }
        });
        Self { url, requests }
    }

    pub(super) fn requests(&self) -> Vec<ReceivedRequest> {
        lock(&self.requests).clone()
    }
}

async fn serve(mut stream: TcpStream, reaction: Reaction, recorded: Arc<Mutex<Vec<ReceivedRequest>>>) {
    let request = read_request(&mut stream).await;
    lock(&recorded).push(request);
    match reaction {
        Answer(status, headers) => {
            let answer = format!("HTTP/1.1 {status} X\r\n{headers}content-length: 5\r\n\r\nsorry");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
        Stall => {
            // Until the client closes the connection.
            let _ = stream.read(&mut [0; 1]).await;
        }
        Reset => stream.set_zero_linger().unwrap(),
        Drip => {
            for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" {
                let _ = stream.write_all(&[*byte]).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Flood => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> ReceivedRequest {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap_or(0);
        bytes.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let request = ReceivedRequest { head: head.to_owned(), body: body.to_owned() };
            if count == 0 || request.body.len().to_string() == request.header("content-length") {
                return request;
            }
        } else if count == 0 {
            return ReceivedRequest { head: text.into_owned(), body: String::new() };
        }
    }
}
