//! Limits on size, number and duration per connection and request.

use std::time::Duration;

use garenne_common::config::{Concurrency, Invalid, Size};
use serde::{Deserialize, Serialize};

/// Limits of the gateway; the table `gateway` of the settings.
#[serde_with::apply(Duration => #[serde(with = "humantime_serde")])]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most open connections; further ones are refused.
    pub max_connections: usize,
    /// Most open connections of one source address; 0 for no limit.
    pub max_connections_per_source: usize,
    /// Memory of all requests, lines and outstanding answers together.
    pub memory_budget: Size,
    /// Number of workers of `--server worker-pool`.
    pub workers: Concurrency,
    /// Connections that may wait for a worker of `--server worker-pool`; above it new connections are refused.
    pub max_waiting: usize,
    /// Longest line of the TCP protocol.
    pub max_line: Size,
    /// Largest HTTP body, before and after decompression.
    pub max_body: Size,
    /// Most records in one request or line.
    pub max_records: usize,
    /// Most lines of one TCP connection whose answers are outstanding.
    pub max_in_flight: usize,
    /// Longest time from accepting a connection to its first bytes.
    pub first_byte_timeout: Duration,
    /// Longest time from accepting a connection to its first successful authentication, if tokens or certificates are
    /// required.
    pub auth_timeout: Duration,
    /// Longest time from the first byte of an HTTP request to the end of its headers, and longest TLS handshake.
    pub header_timeout: Duration,
    /// Longest time from the end of the headers to the end of the body, and from the first byte of a line to its last.
    pub body_timeout: Duration,
    /// Longest silence between requests or lines.
    pub idle_timeout: Duration,
    /// Longest time that a write may take because the sender reads no answers.
    pub write_timeout: Duration,
    /// How long a stop waits for open requests.
    pub drain_timeout: Duration,
    /// The value of `Retry-After` while the broker or the gateway refuses requests.
    pub retry_after: Duration,
    /// New readings are refused while a publisher confirm has been outstanding for longer.
    pub max_confirm_latency: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 12_000,
            max_connections_per_source: 2_000,
            memory_budget: Size::mib(24),
            workers: Concurrency { min: 2, max: 16 },
            max_waiting: 1024,
            max_line: Size::kib(64),
            max_body: Size::mib(4),
            max_records: 10_000,
            max_in_flight: 256,
            first_byte_timeout: Duration::from_secs(10),
            auth_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(20),
            drain_timeout: Duration::from_secs(20),
            retry_after: Duration::from_secs(1),
            max_confirm_latency: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Checks every limit. The error is the first invalid one.
    pub fn validate(&self) -> Result<(), Invalid> {
        let counts = [
            ("max_connections", self.max_connections),
            ("max_records", self.max_records),
            ("max_in_flight", self.max_in_flight),
            ("max_line", self.max_line.bytes()),
            ("max_body", self.max_body.bytes()),
        ];
        for (name, count) in counts {
            if count == 0 {
                return Err(Invalid::new(format!("gateway.{name}"), count, "expected at least 1"));
            }
        }
        // Two senders with a line of the largest size and its task each.
        let least = Size(4 * self.max_line.0.max(64 << 10));
        if self.memory_budget < least {
            let problem = format!("expected at least {least}, four times gateway.max_line or 64KiB");
            return Err(Invalid::new("gateway.memory_budget", self.memory_budget, problem));
        }
        let times = [
            ("first_byte_timeout", self.first_byte_timeout),
            ("auth_timeout", self.auth_timeout),
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("idle_timeout", self.idle_timeout),
            ("write_timeout", self.write_timeout),
            ("max_confirm_latency", self.max_confirm_latency),
        ];
        match times.iter().find(|(_, time)| time.is_zero()) {
            Some((name, _)) => {
                Err(Invalid::new(format!("gateway.{name}"), "0s", "expected more than 0s, such as 10s"))
            }
            None => Ok(()),
        }
    }
}
