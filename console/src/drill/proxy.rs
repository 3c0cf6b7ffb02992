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

/// The port of a URL that names none.
const AMQP: u16 = 5672;

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

/// A TCP proxy on the loopback interface, in front of one server or of several that are the same. Dropped, it resets its connections.
///
/// Without TLS only: behind it the server has another name than its certificate.
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
    /// Starts a proxy in front of `target`, such as `broker:5672`.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(target: &str) -> Result<Self> {
        Self::in_front_of(vec![target.to_owned()]).await
    }

    async fn in_front_of(targets: Vec<String>) -> Result<Self> {
        let targets = Arc::new(Targets { all: targets, next: AtomicUsize::new(0) });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (line, _) = watch::channel(Line::Whole);
        let (generation, _) = watch::channel(0);
        let open = Arc::new(AtomicUsize::new(0));
        let accepting =
            tokio::spawn(accept(listener, targets, Watch::of(&line, &generation), Arc::clone(&open)));
        Ok(Self { address, line, generation, open, accepting })
    }

    /// A proxy in front of the server of a URL, and that URL with the proxy's address in it. Without a
    /// port the URL means AMQP's.
    ///
    /// # Errors
    /// When the URL has no host.
    pub async fn for_url(url: &str) -> Result<(Self, String)> {
        Self::for_urls(&[url.to_owned()]).await
    }

    /// The same in front of several servers, as a load balancer: each connection goes to the next that
    /// takes it. The answer is the first URL with the proxy's address in it.
    ///
    /// # Errors
    /// When there is no URL, or one has no host.
    pub async fn for_urls(urls: &[String]) -> Result<(Self, String)> {
        let target = |url: &String| {
            let url = parse(url)?;
            let host = url.host_str().context("a URL without a host")?;
            anyhow::Ok(format!("{host}:{}", url.port().unwrap_or(AMQP)))
        };
        let proxy = Self::in_front_of(urls.iter().map(target).collect::<Result<_>>()?).await?;
        let url = proxy.instead_of(urls.first().context("no URL")?)?;
        Ok((proxy, url))
    }

    /// A URL with this proxy's address in it, as for another user of the same servers.
    ///
    /// # Errors
    /// When it is no URL.
    pub fn instead_of(&self, url: &str) -> Result<String> {
        let mut url = parse(url)?;
        url.set_host(Some("127.0.0.1")).context("the proxy's address")?;
        url.set_port(Some(self.address.port())).ok().context("the proxy's port")?;
        Ok(url.into())
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

/// The servers behind the proxy.
#[derive(Debug)]
struct Targets {
    all: Vec<String>,
    next: AtomicUsize,
}

impl Targets {
    /// A connection to the next that takes one.
    async fn connect(&self) -> io::Result<TcpStream> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut refused = io::ErrorKind::NotFound.into();
        for at in 0..self.all.len() {
            match TcpStream::connect(&self.all[(first + at) % self.all.len()]).await {
                Ok(stream) => return Ok(stream),
                Err(error) => refused = error,
            }
        }
        Err(refused)
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

    /// Waits while nothing may pass. What a stall held back does not slip through when the line is cut.
    async fn passable(&mut self) {
        let _ = self.line.wait_for(|line| *line == Line::Whole).await;
    }
}

async fn accept(listener: TcpListener, targets: Arc<Targets>, watch: Watch, open: Arc<AtomicUsize>) {
    // Out of descriptors or the like: clients are refused from then on and say so.
    while let Ok((client, _)) = listener.accept().await {
        let mut watch = watch.clone();
        // Only commands after this moment concern this connection.
        watch.generation.mark_unchanged();
        let (open, targets) = (Arc::clone(&open), Arc::clone(&targets));
        tokio::spawn(async move {
            open.fetch_add(1, Ordering::AcqRel);
            carry(client, &targets, watch).await;
            open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// Errors do not show the URL: it may carry a password.
fn parse(url: &str) -> Result<reqwest::Url> {
    reqwest::Url::parse(url).context("the broker's URL")
}

/// Carries one connection until both sides have ended it or it is broken on command.
async fn carry(mut client: TcpStream, targets: &Targets, mut watch: Watch) {
    let mut broken = pin!(watch.clone().broken());
    let connected = async {
        watch.passable().await;
        targets.connect().await
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
