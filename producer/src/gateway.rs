//! The sensor gateway: one port for HTTP and the TCP line protocol, and a receipt that means safe.
//!
//! A connection travels accept → sniff → http or tcp → ingest → outlet, and its receipts travel
//! back. Which server runs it ([`server`]) is a setting and changes nothing else.

mod accept;
mod auth;
mod connection;
mod connection_runtime;
mod delivery;
mod files;
mod frame;
mod http;
pub mod influx;
mod ingest;
mod instruments;
mod limits;
mod memory;
mod offload;
mod openapi;
mod payload;
mod problem;
mod refusal;
pub mod run;
pub mod server;
mod sniff;
mod sources;
mod tcp;
mod tls;
mod unread;

pub use accept::{Gateway, Parts};
pub use auth::Access;
pub use files::raise_file_limit;
pub(crate) use ingest::READING;
pub use ingest::{Ingest, Routes};
pub use instruments::Instruments;
pub use limits::Limits;
pub use memory::MemoryBudget;
pub use openapi::document as openapi_document;
pub use refusal::Refusal;
pub use server::ServerKind;
pub use tls::{Tls, TlsFiles};

use garenne_protocol::task::TraceContext;

/// Leaves a line in the log for each refusal: who, over what, why. Never what was sent, which may hold
/// a secret.
fn audit(peer: &auth::Peer, protocol: &str, code: &str, trace: Option<&TraceContext>) {
    let trace_id = trace.map(TraceContext::trace_id);
    let device = peer.device.as_deref().unwrap_or("-");
    tracing::info!(target: "garenne_producer::audit", peer = %peer.address, device, protocol, code, trace_id, "refused");
}

#[cfg(test)]
mod tests;
