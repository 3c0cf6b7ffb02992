//! Handlers that cannot run tasks.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use garenne_protocol::heartbeat::NotReadyBeat;

use super::{
    Facts, Problem,
    problem::{Code::HandlerNotReady, Severity::Critical},
};
use crate::fleet::{MemberView, State};

/// A handler that starts for this long is named.
const MIN_NOT_READY: Duration = Duration::from_secs(10);

/// Kinds whose handlers cannot run tasks.
#[derive(Default)]
pub(super) struct Unready<'f> {
    pub(super) problems: Vec<Problem>,
    /// The lanes that take these kinds.
    pub(super) lanes: BTreeSet<&'f str>,
}

impl<'f> Unready<'f> {
    pub(super) fn of(facts: &Facts<'f>, workers: &[MemberView]) -> Self {
        let mut kinds = BTreeMap::<&str, Vec<(&str, &NotReadyBeat)>>::new();
        for worker in workers.iter().filter(|worker| worker.state == State::Open) {
            let beat = worker.process.heartbeat();
            for (kind, beat) in beat.iter().flat_map(|beat| &beat.not_ready) {
                kinds.entry(kind).or_default().push((worker.process.id(), beat));
            }
        }
        let mut unready = Self::default();
        for (kind, beats) in kinds {
            let since = beats.iter().map(|(_, beat)| beat.since).min().unwrap_or(facts.now);
            // One that says why has failed already.
            let failed = beats.iter().find(|(_, beat)| !beat.problem.is_empty());
            if failed.is_none()
                && facts.now.saturating_sub(since).unsigned_abs() < MIN_NOT_READY.as_millis() as u64
            {
                continue;
            }
            let (worker, beat) = failed.unwrap_or(&beats[0]);
            let why = if failed.is_some() { &beat.problem } else { "its handler does not finish its start" };
            let others = match beats.len() - 1 {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            let problem = Problem::new(HandlerNotReady, Critical, format!("kind {kind}")).since(since);
            unready.problems.push(
                problem
                    .detail(format!("{why}; no task of it runs in worker {worker}{others}"))
                    .next(format!("no task is lost; the log of worker {worker} says more")),
            );
            unready.lanes.extend(facts.operator.settings.lanes.taking(kind));
        }
        unready
    }
}
