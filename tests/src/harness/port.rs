//! Ports that stay reserved for a server while it is stopped.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::{LazyLock, Mutex, PoisonError},
};

use anyhow::{Context, Result};

/// Ports below the kernel's ephemeral range, so that no outgoing connection takes a broker's port between its stop and
/// its start.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A loopback port that nothing listens on. Two calls in one process never return the same port, because its server may
/// start later.
pub fn free_port() -> Result<u16> {
    /// Starts at a random port, because other test processes may run at the same time.
    static PORTS: LazyLock<Mutex<Box<dyn Iterator<Item = u16> + Send>>> = LazyLock::new(|| {
        let first = rand::random_range(RANGE);
        Mutex::new(Box::new((first..RANGE.end).chain(RANGE.start..first)))
    });
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    ports
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .with_context(|| format!("no free port found in {RANGE:?}"))
}
