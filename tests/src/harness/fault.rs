//! A TCP proxy that breaks connections on command.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// What the proxy does with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Bytes pass.
    Whole,
    /// Connections stay open and no byte passes, either way.
    Stalled,
    /// Connections are reset, new ones too.
    Cut,
}

/// A TCP proxy on the loopback interface, in front of one server. Dropped, it resets its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    line: watch::Sender<Line>,
    /// Raised to reset the connections of the moment.
    generation: watch::Sender<u64>,
    open: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of `target`, such as `127.0.0.1:5672`.
    ///
    /// # Errors
    /// When `target` is no address or no port can be had.
    pub async fn start(target: &str) -> Result<Self> {
        let target: SocketAddr = target.parse().with_context(|| format!("address `{target}`"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (line, _) = watch::channel(Line::Whole);
        let (generation, _) = watch::channel(0);
        let open = Arc::new(AtomicUsize::new(0));
        let accepting =
            tokio::spawn(accept(listener, target, Watch::of(&line, &generation), Arc::clone(&open)));
        Ok(Self { address, line, generation, open, accepting })
    }

    /// A proxy in front of the server of a URL, and that URL with the proxy's address in it.
    ///
    /// # Errors
    /// When the URL has no numeric address and port.
    pub async fn for_url(url: &str) -> Result<(Self, String)> {
        let mut url = reqwest::Url::parse(url).with_context(|| format!("URL `{url}`"))?;
        let (host, port) = (url.host_str().context("no host")?, url.port().context("no port")?);
        let proxy = Self::start(&format!("{host}:{port}")).await?;
        url.set_port(Some(proxy.address.port())).ok().context("no port")?;
        Ok((proxy, url.into()))
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that pass through it now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Resets the connections of this moment; new ones pass.
    pub fn drop_connections(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Resets all connections, and new ones as soon as they come, until [`heal`](Self::heal).
    pub fn cut(&self) {
        self.line.send_replace(Line::Cut);
    }

    /// Lets no byte pass until [`heal`](Self::heal). Connections stay open, new ones included: a
    /// half-open network, which only a heartbeat or a timeout finds out about.
    pub fn stall(&self) {
        self.line.send_replace(Line::Stalled);
    }

    /// Lets everything pass again, bytes held back by a stall included.
    pub fn heal(&self) {
        self.line.send_replace(Line::Whole);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

/// The commands that a connection follows.
#[derive(Clone)]
struct Watch {
    line: watch::Receiver<Line>,
    generation: watch::Receiver<u64>,
}

impl Watch {
    fn of(line: &watch::Sender<Line>, generation: &watch::Sender<u64>) -> Self {
        Self { line: line.subscribe(), generation: generation.subscribe() }
    }

    /// Ends when the connection must be reset.
    async fn broken(mut self) {
        tokio::select! {
            // Errors mean that the proxy is gone, and its connections with it.
            _ = self.line.wait_for(|line| *line == Line::Cut) => {}
            _ = self.generation.changed() => {}
        }
    }

    /// Waits while nothing may pass.
    async fn passable(&mut self) {
        let _ = self.line.wait_for(|line| *line != Line::Stalled).await;
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, watch: Watch, open: Arc<AtomicUsize>) {
    // Out of descriptors or the like: the test fails by what its clients see.
    while let Ok((client, _)) = listener.accept().await {
        let mut watch = watch.clone();
        // Only commands after this moment concern this connection.
        watch.generation.mark_unchanged();
        let open = Arc::clone(&open);
        tokio::spawn(async move {
            open.fetch_add(1, Ordering::AcqRel);
            carry(client, target, watch).await;
            open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// Carries one connection until both sides have ended it or it is broken on command.
async fn carry(mut client: TcpStream, target: SocketAddr, mut watch: Watch) {
    let mut broken = pin!(watch.clone().broken());
    let connected = async {
        watch.passable().await;
        TcpStream::connect(target).await
    };
    let server = tokio::select! {
        () = &mut broken => None,
        server = connected => server.ok(),
    };
    let Some(mut server) = server else {
        reset(&client);
        return;
    };
    let whole = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let there = copy(from_client, to_server, watch.clone());
        let back = copy(from_server, to_client, watch);
        tokio::select! {
            () = broken => false,
            ended = async { tokio::try_join!(there, back) } => ended.is_ok(),
        }
    };
    if !whole {
        reset(&client);
        reset(&server);
    }
}

/// Turns the close at the end of a socket's life into a reset. Only for broken ones: a reset discards
/// what is still to be sent, such as the last frame of an orderly end.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Copies one direction until its end, which is handed on.
async fn copy(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut watch: Watch) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        watch.passable().await;
        let count = from.read(&mut buffer).await?;
        // A stall that began while we waited for these bytes holds them back too.
        watch.passable().await;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}
