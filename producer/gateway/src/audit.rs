//! The audit log: a line for each refusal, within a limit on lines per second, and a counter of all.

use std::sync::Arc;

use garenne_common::log_limit::LogLimit;
use garenne_protocol::task::TraceContext;
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};

use crate::auth::Peer;

/// Why something was refused: the protocol and the refusal's code. Both are texts of the program, so their number is
/// bounded.
type Reason = (&'static str, &'static str);

/// Logs and counts refusals. Clones share their counts.
#[derive(Clone)]
pub(crate) struct Audit {
    refusals: IntCounterVec,
    lines: Arc<LogLimit<Reason>>,
}

impl Audit {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let refusals = register_int_counter_vec_with_registry!(
            "garenne_gateway_refusals_total",
            "Requests, lines and connections that were refused, by the code of the refusal.",
            &["protocol", "reason"],
            registry
        )?;
        Ok(Self { refusals, lines: Arc::default() })
    }

    /// Counts a refusal and logs the peer, the protocol and the refusal's code, unless there were too many lines of this
    /// reason. Never the data, which may contain a secret.
    pub(crate) fn refused(
        &self,
        peer: &Peer,
        protocol: &'static str,
        code: &'static str,
        trace: Option<&TraceContext>,
    ) {
        self.refused_line(peer, protocol, code, None, trace);
    }

    /// As [`Audit::refused`], with the number of the line, if it is one.
    pub(crate) fn refused_line(
        &self,
        peer: &Peer,
        protocol: &'static str,
        code: &'static str,
        line: Option<u64>,
        trace: Option<&TraceContext>,
    ) {
        self.refusals.with_label_values(&[protocol, code]).inc();
        let reason = (protocol, code);
        if self.lines.takes(reason, |suppressed| report(reason, suppressed)) {
            let trace_id = trace.map(TraceContext::trace_id);
            let (peer, device) = (peer.address, peer.device().map_or("-", |device| device));
            tracing::info!(target: "garenne_gateway::audit", %peer, device, protocol, code, line, trace_id, "refused");
        }
    }

    /// Logs how many lines were left out in intervals that have ended.
    pub(crate) fn report_suppressed(&self) {
        self.lines.report(report);
    }
}

fn report((protocol, code): Reason, suppressed: u64) {
    tracing::info!(target: "garenne_gateway::audit", protocol, code, suppressed, "more were refused");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_counted() {
        let registry = Registry::new();
        let audit = Audit::register(&registry).unwrap();
        let peer = Peer::new(([10, 0, 0, 1], 1).into());
        (0..100).for_each(|_| audit.refused(&peer, "http", "unauthorized", None));
        assert_eq!(audit.refusals.with_label_values(&["http", "unauthorized"]).get(), 100);
    }
}
