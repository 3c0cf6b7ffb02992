//! How long connections of HTTP stay open between requests and within one.

use std::net::SocketAddr;

use tokio::{io::DuplexStream, time::Instant};

use super::{hostile::head, *};
use crate::{auth::Peer, http};

/// A connection without sockets, so that paused time passes only while nothing happens.
async fn connect() -> (Running, DuplexStream) {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let (sender, ours) = tokio::io::duplex(64 * 1024);
    let (context, stop) = (Arc::clone(&gateway.context), gateway.stop.clone());
    tokio::spawn(async move {
        let (router, peer) =
            (http::router(Arc::clone(&context)), Peer::new(SocketAddr::from(([127, 0, 0, 1], 1))));
        let memory = context.budget.account(None);
        let _ = http::serve(ours, router, &context, &peer, &memory, &stop).await;
    });
    (gateway, sender)
}

fn request() -> String {
    head("/v1/readings", &format!("content-length: {}\r\n", READING.len())) + READING
}

/// Sends requests together and reads their answers.
async fn accepted(sender: &mut DuplexStream, requests: usize) {
    sender.write_all(request().repeat(requests).as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    while answers.windows(2).filter(|end| end == b"]}").count() < requests {
        assert!(sender.read_buf(&mut answers).await.unwrap() > 0, "the connection is closed");
    }
    assert_eq!(answers.windows(12).filter(|start| start == b"HTTP/1.1 202").count(), requests);
}

/// How long the connection stays open.
async fn until_closed(sender: &mut DuplexStream) -> Duration {
    let begun = Instant::now();
    let mut rest = Vec::new();
    sender.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_connection_stays_open_between_requests_for_the_idle_timeout() {
    let (_gateway, mut sender) = connect().await;
    for pause in [0, 9, 11, 299] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        accepted(&mut sender, 1).await;
    }
    accepted(&mut sender, 2).await;
    assert_eq!(until_closed(&mut sender).await.as_secs(), Limits::default().idle_timeout.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_head_has_its_own_timeout_from_its_first_byte() {
    let (gateway, mut sender) = connect().await;
    accepted(&mut sender, 1).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    sender.write_all(b"POST /v1/readings").await.unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    // More bytes do not extend it.
    sender.write_all(b" HTTP/1.1\r\n").await.unwrap();
    assert_eq!(until_closed(&mut sender).await.as_secs(), 2);
    let counted = r#"garenne_gateway_refusals_total{protocol="http",reason="timeout"} 1"#;
    assert!(gateway.metrics.encode().contains(counted));
}
