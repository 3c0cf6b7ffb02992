//! Ports that stay a server's own while it is down.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// Ports below the range that the kernel hands out for outgoing connections, so that nobody is given a
/// broker's port between its stop and its start.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A loopback port that nothing listens on.
///
/// # Errors
/// When a hundred random ones are all taken.
pub(crate) fn free_port() -> Result<u16> {
    (0..100)
        .map(|_| rand::random_range(RANGE))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .with_context(|| format!("no free port found in {RANGE:?}"))
}
