//! The audit log.

use garenne_protocol::task::TraceContext;

use crate::auth::Peer;

/// Logs one refusal: the peer, the protocol and the refusal's code. Never the data, which may contain a secret.
pub(crate) fn audit(peer: &Peer, protocol: &str, code: &str, trace: Option<&TraceContext>) {
    let trace_id = trace.map(TraceContext::trace_id);
    let device = peer.device.as_deref().unwrap_or("-");
    tracing::info!(target: "garenne_gateway::audit", peer = %peer.address, device, protocol, code, trace_id, "refused");
}
