//! One connection through a fault proxy.

use std::{io, pin::pin, sync::atomic::Ordering};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    time::sleep,
};

use super::{
    link::{Link, LinkState},
    server_filter::{FilterAction, ServerFilter},
};

/// Buffer of one direction of a connection, in bytes.
const BUFFER_SIZE: usize = 64 * 1024;

/// The commands that a connection follows.
#[derive(Clone)]
pub(super) struct Commands {
    state: watch::Receiver<LinkState>,
    generation: watch::Receiver<u64>,
}

impl Commands {
    /// The commands from now on.
    pub(super) fn of(link: &Link) -> Self {
        Self { state: link.state.subscribe(), generation: link.generation.subscribe() }
    }

    /// Waits until the connection must be reset.
    async fn reset(mut self) {
        tokio::select! {
            // An error means that the proxy was dropped.
            _ = self.state.wait_for(|state| *state == LinkState::Cut) => {}
            _ = self.generation.changed() => {}
        }
    }

    /// Waits until bytes may pass. Bytes that a stall held back do not pass when the link is cut.
    async fn passable(&mut self) {
        let _ = self.state.wait_for(|state| *state == LinkState::Up).await;
    }
}

/// Forwards one connection until both sides have closed it or a command resets it.
pub(super) async fn forward(mut client: TcpStream, link: &Link, mut commands: Commands) {
    let mut reset = pin!(commands.clone().reset());
    let connected = async {
        commands.passable().await;
        link.connect().await
    };
    let server = tokio::select! {
        () = &mut reset => None,
        server = connected => server.ok(),
    };
    let Some(mut server) = server else {
        if link.is_cut() {
            link.refused.fetch_add(1, Ordering::AcqRel);
        }
        reset_on_close(&client);
        return;
    };
    let closed = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let filter = link.new_filter.as_ref().map(|new_filter| new_filter());
        let upstream = copy(from_client, to_server, commands.clone(), None, link);
        let downstream = copy(from_server, to_client, commands, filter, link);
        tokio::select! {
            () = reset => false,
            ended = async { tokio::try_join!(upstream, downstream) } => ended.is_ok(),
        }
    };
    if !closed {
        reset_on_close(&client);
        reset_on_close(&server);
    }
}

/// Makes the close of a socket a TCP reset. A reset discards unsent bytes, such as the last frame of an orderly close,
/// so connections that both sides closed are not reset.
fn reset_on_close(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Copies one direction until its end of stream, and forwards that. `filter` decides about each chunk of bytes.
async fn copy(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut commands: Commands,
    mut filter: Option<Box<dyn ServerFilter>>,
    link: &Link,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_SIZE];
    loop {
        commands.passable().await;
        let count = from.read(&mut buffer).await?;
        // A stall that began during the read holds these bytes back too.
        commands.passable().await;
        if count == 0 {
            return to.shutdown().await;
        }
        let received = &buffer[..count];
        let actions = match &mut filter {
            Some(filter) => filter.filter(received),
            None => vec![FilterAction::Forward(received.to_vec())],
        };
        for action in actions {
            match action {
                FilterAction::Forward(bytes) => to.write_all(&bytes).await?,
                FilterAction::Pause(pause) => {
                    sleep(pause).await;
                    link.pauses.fetch_add(1, Ordering::AcqRel);
                }
                FilterAction::Cut => {
                    link.state.send_replace(LinkState::Cut);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
    }
}
