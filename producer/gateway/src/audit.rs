//! The audit log: a line for each refusal, within a limit on lines per second, and a counter of all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use garenne_protocol::task::TraceContext;
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use tokio::time::Instant;

use crate::auth::Peer;

/// Most lines per reason in one [`INTERVAL`].
const MAX_LINES: u64 = 10;
const INTERVAL: Duration = Duration::from_secs(1);

/// Why something was refused: the protocol and the refusal's code. Both are texts of the program, so their number is
/// bounded.
type Reason = (&'static str, &'static str);

/// Logs and counts refusals. Clones share their counts.
#[derive(Clone)]
pub(crate) struct Audit {
    refusals: IntCounterVec,
    intervals: Arc<Mutex<HashMap<Reason, Interval>>>,
}

/// The lines of a reason since `started`.
struct Interval {
    started: Instant,
    lines: u64,
    suppressed: u64,
}

impl Audit {
    /// # Errors
    /// The counter is registered already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let refusals = register_int_counter_vec_with_registry!(
            "garenne_gateway_refusals_total",
            "Requests, lines and connections that were refused, by the code of the refusal.",
            &["protocol", "reason"],
            registry
        )?;
        Ok(Self { refusals, intervals: Arc::default() })
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
        self.log(peer, (protocol, code), None, trace);
    }

    /// As [`Audit::refused`], with the number of the line.
    pub(crate) fn refused_line(
        &self,
        peer: &Peer,
        protocol: &'static str,
        code: &'static str,
        line: u64,
        trace: Option<&TraceContext>,
    ) {
        self.log(peer, (protocol, code), Some(line), trace);
    }

    fn log(&self, peer: &Peer, (protocol, code): Reason, line: Option<u64>, trace: Option<&TraceContext>) {
        self.refusals.with_label_values(&[protocol, code]).inc();
        if self.takes((protocol, code)) {
            let trace_id = trace.map(TraceContext::trace_id);
            let (peer, device) = (peer.address, peer.device().map_or("-", |device| device));
            tracing::info!(target: "garenne_gateway::audit", %peer, device, protocol, code, line, trace_id, "refused");
        }
    }

    /// Whether there is room for a line of this reason.
    fn takes(&self, reason: Reason) -> bool {
        let mut intervals = self.intervals.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let interval = intervals.entry(reason).or_insert(Interval { started: now, lines: 0, suppressed: 0 });
        if now.duration_since(interval.started) >= INTERVAL {
            interval.report(reason);
            *interval = Interval { started: now, lines: 0, suppressed: 0 };
        }
        let takes = interval.lines < MAX_LINES;
        let count = if takes { &mut interval.lines } else { &mut interval.suppressed };
        *count += 1;
        takes
    }

    /// Logs how many lines were left out in intervals that have ended. Returns their number.
    pub(crate) fn report_suppressed(&self) -> u64 {
        let mut intervals = self.intervals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = 0;
        intervals.retain(|reason, interval| {
            let is_over = interval.started.elapsed() >= INTERVAL;
            if is_over {
                interval.report(*reason);
                total += interval.suppressed;
            }
            !is_over
        });
        total
    }
}

impl Interval {
    fn report(&self, (protocol, code): Reason) {
        if self.suppressed > 0 {
            let suppressed = self.suppressed;
            tracing::info!(target: "garenne_gateway::audit", protocol, code, suppressed, "more were refused");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_are_limited_for_each_reason_and_the_rest_is_counted() {
        let registry = Registry::new();
        let audit = Audit::register(&registry).unwrap();
        let lines =
            |code: &'static str, refusals: u32| (0..refusals).filter(|_| audit.takes(("tcp", code))).count();
        assert_eq!((lines("unauthorized", 1000), lines("busy", 3)), (10, 3));
        assert_eq!(audit.report_suppressed(), 0, "the second has not ended");
        tokio::time::advance(INTERVAL).await;
        assert_eq!(audit.report_suppressed(), 990);
        assert_eq!((audit.report_suppressed(), lines("unauthorized", 11)), (0, 10));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(lines("unauthorized", 1), 1, "a new second, also without a report");
    }

    #[test]
    fn every_refusal_is_counted() {
        let registry = Registry::new();
        let audit = Audit::register(&registry).unwrap();
        let peer = Peer::new(([10, 0, 0, 1], 1).into());
        (0..100).for_each(|_| audit.refused(&peer, "http", "unauthorized", None));
        assert_eq!(audit.refusals.with_label_values(&["http", "unauthorized"]).get(), 100);
    }
}
