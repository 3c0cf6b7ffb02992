//! A TCP proxy that stalls, resets and refuses connections on command, and filters what a server sends. It has the faults
//! that scenarios need; the proxy of `garenne-drill run` only stalls and resets.

mod connection;
mod link;
mod server_filter;
#[cfg(test)]
mod tests;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
};

use anyhow::{Context, Result};
use garenne_common::supervise::{self, TaskHandle};
use tokio::net::TcpListener;

pub use self::server_filter::{FilterAction, ServerFilter};

use self::{
    connection::{Commands, forward},
    link::{Link, LinkState, NewFilter},
};

/// The port of an AMQP URL without a port.
const DEFAULT_AMQP_PORT: u16 = 5672;

/// A TCP proxy on the loopback interface, in front of one server or of several equal ones. It resets its connections
/// when dropped.
///
/// It cannot be used with TLS: the certificate names the server and not the proxy.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    link: Arc<Link>,
    /// Aborted when the proxy is dropped.
    _accept_loop: TaskHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy in front of `target`, such as `broker:5672`.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start(target: &str) -> Result<Self> {
        Self::in_front_of(vec![target.to_owned()], None).await
    }

    async fn in_front_of(targets: Vec<String>, new_filter: Option<NewFilter>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let link = Arc::new(Link::new(targets, new_filter));
        let accept_loop = supervise::isolated("fault proxy", accept(listener, Arc::clone(&link))).spawn();
        Ok(Self { address, link, _accept_loop: accept_loop })
    }

    /// Starts a proxy in front of the server of an AMQP URL, and returns that URL with the proxy's address in it.
    ///
    /// # Errors
    /// If the URL is invalid or has no host, or no port is free.
    pub async fn for_url(url: &str) -> Result<(Self, String)> {
        Self::for_urls(&[url.to_owned()]).await
    }

    /// Starts a proxy in front of several servers. It balances round robin: each connection goes to the next server
    /// that accepts it. Returns the first URL with the proxy's address in it.
    ///
    /// # Errors
    /// If there is no URL, one is invalid or has no host, or no port is free.
    pub async fn for_urls(urls: &[String]) -> Result<(Self, String)> {
        let targets = urls.iter().map(|url| target(url)).collect::<Result<_>>()?;
        let proxy = Self::in_front_of(targets, None).await?;
        let url = proxy.instead_of(urls.first().context("no broker URL")?)?;
        Ok((proxy, url))
    }

    /// Starts a proxy in front of the server of an AMQP URL, with a filter for what that server sends on each
    /// connection. Returns the URL with the proxy's address in it.
    ///
    /// # Errors
    /// If the URL is invalid or has no host, or no port is free.
    pub async fn with_filter<F: ServerFilter>(
        url: &str,
        new_filter: impl Fn() -> F + Send + Sync + 'static,
    ) -> Result<(Self, String)> {
        let new_filter: NewFilter = Box::new(move || Box::new(new_filter()));
        let proxy = Self::in_front_of(vec![target(url)?], Some(new_filter)).await?;
        let url = proxy.instead_of(url)?;
        Ok((proxy, url))
    }

    /// The URL with this proxy's address in it, for another user of the same servers.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn instead_of(&self, url: &str) -> Result<String> {
        let mut url = parse(url)?;
        url.set_host(Some("127.0.0.1")).context("cannot set the proxy's address")?;
        url.set_port(Some(self.address.port())).ok().context("cannot set the proxy's port")?;
        Ok(url.into())
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.link.open.load(Ordering::Acquire)
    }

    /// The number of connections that were reset before they reached a server, while the proxy was [`cut`](Self::cut).
    #[must_use]
    pub fn refused(&self) -> usize {
        self.link.refused.load(Ordering::Acquire)
    }

    /// Whether the proxy is [`cut`](Self::cut).
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.link.is_cut()
    }

    /// The number of [pauses](FilterAction::Pause) that are over.
    #[must_use]
    pub fn pauses(&self) -> usize {
        self.link.pauses.load(Ordering::Acquire)
    }

    /// Resets the open connections; new ones pass.
    pub fn drop_connections(&self) {
        self.link.generation.send_modify(|generation| *generation += 1);
    }

    /// Resets open connections and every new one until [`heal`](Self::heal).
    pub fn cut(&self) {
        self.link.state.send_replace(LinkState::Cut);
    }

    /// Lets no byte pass until [`heal`](Self::heal). Connections stay open, and new ones are accepted: a half-open
    /// connection, which only a heartbeat or a timeout detects.
    pub fn stall(&self) {
        self.link.state.send_replace(LinkState::Stalled);
    }

    /// Lets everything pass again, including bytes that a stall held back.
    pub fn heal(&self) {
        self.link.state.send_replace(LinkState::Up);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn accept(listener: TcpListener, link: Arc<Link>) {
    // After an error, such as no free file descriptors, clients are refused and report that.
    while let Ok((client, _)) = listener.accept().await {
        // Resets before this connection was accepted do not apply to it.
        let commands = Commands::of(&link);
        let link = Arc::clone(&link);
        let connection = async move {
            link.open.fetch_add(1, Ordering::AcqRel);
            forward(client, &link, commands).await;
            link.open.fetch_sub(1, Ordering::AcqRel);
        };
        supervise::isolated("fault proxy connection", connection).spawn().detach();
    }
}

/// Host and port of an AMQP URL.
fn target(url: &str) -> Result<String> {
    let url = parse(url)?;
    let host = url.host_str().context("the broker's URL has no host")?;
    Ok(format!("{host}:{}", url.port().unwrap_or(DEFAULT_AMQP_PORT)))
}

/// Errors do not show the URL: it may contain a password.
fn parse(url: &str) -> Result<reqwest::Url> {
    reqwest::Url::parse(url).context("the broker's URL is invalid")
}
