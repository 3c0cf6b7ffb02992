//! What every connection of a gateway is given.

use std::sync::Arc;

use garenne_common::telemetry::Traces;

use crate::{
    auth::Access, ingest::Ingest, instruments::Instruments, limits::Limits, maps::Maps, memory::MemoryBudget,
    network::Network, tls::Tls,
};

/// The state that all connections of a gateway share.
pub struct GatewayContext {
    /// Validates bodies and publishes their tasks.
    pub ingest: Arc<Ingest>,
    /// Authentication, and what each sender may send.
    pub access: Access,
    /// Where connections may come from and how.
    pub network: Network,
    /// Certificates; without them the port does not speak TLS.
    pub tls: Option<Tls>,
    /// Limits per connection and request.
    pub limits: Limits,
    /// Rules for payloads of other projects.
    pub maps: Maps,
    /// Memory budget of requests and lines.
    pub budget: MemoryBudget,
    /// Counts and times of connections, requests and lines.
    pub instruments: Instruments,
    /// Spans of requests and lines.
    pub traces: Traces,
}
