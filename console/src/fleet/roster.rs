//! The known processes of a fleet and the time of their last heartbeats.
//!
//! Times are milliseconds since 1970 by the console's clock. The caller passes them.

use std::{collections::BTreeMap, sync::Arc};

use garenne_protocol::heartbeat::{Heartbeat, Program, Stance};
use serde::Serialize;
use strum::Display;

use super::totals::Totals;

/// Missed heartbeats after which a process counts as silent.
const MAX_MISSED: u64 = 3;
/// How long a silent process is shown, milliseconds.
const FORGET_SILENT: i64 = 10 * 60 * 1000;
/// How long a stopped process is shown, milliseconds.
const FORGET_STOPPED: i64 = 60 * 1000;
/// Limit on processes, so that foreign heartbeats cannot exhaust the memory.
const MAX_MEMBERS: usize = 5_000;

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum State {
    /// Three heartbeats are missing.
    Silent,
    /// Shutting down.
    Stopping,
    /// Takes no tasks until it is resumed.
    Quiet,
    /// Takes tasks.
    Open,
    /// Sent its last heartbeat.
    Stopped,
}

/// The known state of a process.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Process {
    /// Its last heartbeat.
    Heard(Arc<Heartbeat>),
    /// A worker that is on record and never sent a heartbeat.
    Expected {
        /// Its id.
        id: String,
    },
}

impl Process {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::Heard(beat) => &beat.id,
            Self::Expected { id } => id,
        }
    }

    /// Its last heartbeat.
    pub fn heartbeat(&self) -> Option<&Heartbeat> {
        match self {
            Self::Heard(beat) => Some(beat),
            Self::Expected { .. } => None,
        }
    }
}

/// A process as a console shows it.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// Its state.
    pub state: State,
    /// Time since its last heartbeat, milliseconds; absent if it never sent one.
    pub heard_ms_ago: Option<u64>,
    /// Its known state.
    #[serde(flatten)]
    pub process: Process,
}

struct Member {
    process: Process,
    /// Time of its last heartbeat, or of the first check that missed it.
    heard: i64,
}

/// The processes of a fleet.
pub struct Roster {
    members: BTreeMap<(Program, String), Member>,
    /// Counters of the whole fleet since `since`.
    totals: Totals,
    since: i64,
}

impl Roster {
    /// An empty roster that counts from `now` on.
    pub fn new(now: i64) -> Self {
        Self { members: BTreeMap::new(), totals: Totals::default(), since: now }
    }

    /// Records a heartbeat. One that is older than the last one is ignored.
    pub fn record(&mut self, beat: Heartbeat, now: i64) {
        let key = (beat.program, beat.id.clone());
        let known = self.members.get(&key).and_then(|member| member.process.heartbeat());
        if known.is_none() && self.members.len() >= MAX_MEMBERS && !self.members.contains_key(&key) {
            return;
        }
        match known {
            Some(old) if old.incarnation == beat.incarnation => {
                // `stopped` is final for an incarnation, even if heartbeats arrive out of order.
                if beat.at < old.at || old.stance == Stance::Stopped {
                    return;
                }
                self.totals.add(Some(old), &beat);
            }
            Some(old) if beat.started_at < old.started_at => return,
            Some(_) => self.totals.add(None, &beat),
            // A process that started before the roster: its earlier counts are not part of the totals.
            None if beat.started_at < self.since => self.totals.add(Some(&beat), &beat),
            None => self.totals.add(None, &beat),
        }
        self.members.insert(key, Member { process: Process::Heard(Arc::new(beat)), heard: now });
    }

    /// Adds a worker that is on record, unless it is known. It is silent until its first heartbeat.
    pub fn expect(&mut self, worker: &str, now: i64) {
        let key = (Program::Worker, worker.to_owned());
        let process = Process::Expected { id: worker.to_owned() };
        self.members.entry(key).or_insert(Member { process, heard: now });
    }

    /// Removes processes that have been silent or stopped for longer than their limit.
    pub fn forget(&mut self, now: i64) {
        self.members.retain(|_, member| {
            let limit = match state(member, now) {
                State::Silent => FORGET_SILENT,
                State::Stopped => FORGET_STOPPED,
                _ => return true,
            };
            now - member.heard < limit
        });
    }

    /// The processes of a program, by state and then by id.
    pub fn members(&self, program: Program, now: i64) -> Vec<MemberView> {
        let of_program = self.members.iter().filter(|((one, _), _)| *one == program);
        let mut members: Vec<_> = of_program
            .map(|(_, member)| MemberView {
                state: state(member, now),
                heard_ms_ago: member.process.heartbeat().map(|_| (now - member.heard).max(0).unsigned_abs()),
                process: member.process.clone(),
            })
            .collect();
        members.sort_by_key(|member| member.state);
        members
    }

    /// Counters of the whole fleet since the roster was created.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether this incarnation of a worker sent a heartbeat.
    pub fn has_heard(&self, worker: &str, incarnation: &str) -> bool {
        let member = self.members.get(&(Program::Worker, worker.to_owned()));
        member
            .and_then(|member| member.process.heartbeat())
            .is_some_and(|beat| beat.incarnation == incarnation)
    }
}

fn state(member: &Member, now: i64) -> State {
    let Some(beat) = member.process.heartbeat() else { return State::Silent };
    let limit = i64::try_from(beat.every_ms.saturating_mul(MAX_MISSED)).unwrap_or(i64::MAX);
    let overdue = beat.every_ms > 0 && now - member.heard > limit;
    match beat.stance {
        Stance::Stopped => State::Stopped,
        _ if overdue => State::Silent,
        Stance::Open => State::Open,
        Stance::Quiet => State::Quiet,
        Stance::Stopping => State::Stopping,
    }
}

#[cfg(test)]
pub(crate) mod tests;
