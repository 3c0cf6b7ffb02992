//! Problems of gateways and bridges.

use garenne_operator::table::grouped;

use super::{
    Facts,
    problem::{
        Code::{BridgeDisconnected, SpoolSegmentsAside, SpoolWaiting},
        Problem,
        Severity::{Critical, Warning},
    },
};
use crate::fleet::{MemberView, State};

/// How long tasks may wait in a spool before that is a problem.
const MAX_SPOOLED: i64 = 60_000;

pub(super) fn problems(facts: &Facts<'_>, member: &MemberView) -> Vec<Problem> {
    let Some(beat) = member.process.heartbeat().filter(|_| member.state == State::Open) else {
        return Vec::new();
    };
    let program: &str = beat.program.into();
    let (subject, mut problems) = (format!("{program} {}", beat.id), Vec::new());
    if let Some(bridge) = beat.bridge.as_ref().filter(|bridge| !bridge.connected) {
        problems.push(
            Problem::new(BridgeDisconnected, Critical, subject.clone())
                .detail(format!("it is not subscribed to the MQTT broker at {}", bridge.broker))
                .next("its log says why; MQTT brokers keep messages of persistent sessions meanwhile"),
        );
    }
    let Some(spool) = beat.spool else { return problems };
    if spool.oldest_at.is_some_and(|oldest| facts.now.saturating_sub(oldest) > MAX_SPOOLED) {
        problems.push(
            Problem::new(SpoolWaiting, Warning, subject.clone())
                .since(spool.oldest_at)
                .detail(format!("{} tasks wait in its spool", grouped(spool.records)))
                .next("they leave when the broker confirms again; `garenne-producer spool` shows them"),
        );
    }
    if spool.set_aside > 0 {
        problems.push(
            Problem::new(SpoolSegmentsAside, Warning, subject)
                .detail(format!("{} segments of its spool were set aside", spool.set_aside))
                .next("`garenne-producer spool verify` says what is wrong with them"),
        );
    }
    problems
}
