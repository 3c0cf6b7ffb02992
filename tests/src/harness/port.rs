//! Ports that stay a server's own while it is down.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::{LazyLock, Mutex, PoisonError},
};

use anyhow::{Context, Result};

/// Ports below the range that the kernel hands out for outgoing connections, so that nobody is given a
/// broker's port between its stop and its start.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A loopback port that nothing listens on. No two calls in one process return the same port: its server may start
/// later.
///
/// # Errors
/// When all ports of the range are taken.
pub(crate) fn free_port() -> Result<u16> {
    /// From a random one on, because another test process may run beside this one.
    static PORTS: LazyLock<Mutex<Box<dyn Iterator<Item = u16> + Send>>> = LazyLock::new(|| {
        let first = rand::random_range(RANGE);
        Mutex::new(Box::new((first..RANGE.end).chain(RANGE.start..first)))
    });
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    ports
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .with_context(|| format!("no free port found in {RANGE:?}"))
}
