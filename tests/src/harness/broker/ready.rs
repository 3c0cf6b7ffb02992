//! Waits for a broker after its start.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::harness::{management::Management, node::Node};

/// Timeout of a broker's start.
const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Waits until the broker answers AMQP clients and the management API answers. Connections are accepted before that:
/// docker-proxy listens from the container's start.
pub(super) async fn wait_until_ready(node: &Node, amqp_port: u16, management: &Management) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        node.check_alive()?;
        if accepts_clients(amqp_port).await && management.version().await.is_ok() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the broker did not answer within {READY_TIMEOUT:?}: {}", node.log().await);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the broker answers AMQP clients, and returns the time of the first successful attempt.
pub(super) async fn wait_until_it_accepts_clients(node: &Node, amqp_port: u16) -> Result<Instant> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let attempt = Instant::now();
        if accepts_clients(amqp_port).await {
            return Ok(attempt);
        }
        if attempt > deadline {
            bail!("the broker did not answer within {READY_TIMEOUT:?}: {}", node.log().await);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Whether the broker answers an AMQP 0-9-1 header with a method frame (type 1): `connection.start`.
async fn accepts_clients(port: u16) -> bool {
    let handshake = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        stream.read_u8().await
    };
    matches!(timeout(Duration::from_secs(1), handshake).await, Ok(Ok(1)))
}
