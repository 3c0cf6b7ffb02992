//! The known processes of a fleet and the time of their last heartbeats.
//!
//! Times are milliseconds since 1970 by the console's clock. The caller passes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use garenne_protocol::heartbeat::{Heartbeat, Program, Stance, UnhandledBeat};
use serde::Serialize;
use strum::Display;

use super::{
    hearing::Hearing,
    starts::{ProcessStarts, Starts},
    totals::Totals,
};

/// Missed heartbeats after which a process counts as silent.
const MAX_MISSED: u64 = 3;
/// How long a silent process is shown, milliseconds.
const FORGET_SILENT: i64 = 10 * 60 * 1000;
/// How long a stopped process is shown, milliseconds.
const FORGET_STOPPED: i64 = 60 * 1000;
/// Limit on workers that count.
const MAX_WORKERS: usize = 5_000;
/// Limit on workers that are not confirmed. Forged heartbeats fill no more than that.
const MAX_UNCONFIRMED: usize = 100;
/// Limit on gateways, and on bridges: nothing tells real ones from forged ones.
const MAX_PRODUCERS: usize = 500;
/// A heartbeat of an earlier run is not late by more than this, milliseconds.
const MAX_LATE: i64 = 60_000;
/// Limit on the earlier runs of a worker whose tasks count. They come back within a minute or two.
const MAX_EARLIER: usize = 16;
/// How long a worker may stay unconfirmed, milliseconds.
const FORGET_UNCONFIRMED: i64 = 15_000;
/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum State {
    /// Three heartbeats are missing.
    Silent,
    /// Nothing can be heard of any process.
    Unknown,
    /// Shutting down.
    Stopping,
    /// Takes no tasks until it is resumed.
    Quiet,
    /// Takes tasks.
    Open,
    /// Sends heartbeats as a worker; its control queue was not found yet. It counts for nothing.
    Unconfirmed,
    /// Sent its last heartbeat.
    Stopped,
}

impl State {
    /// Whether a worker in this state may run tasks.
    pub fn runs(self) -> bool {
        !matches!(self, Self::Unconfirmed | Self::Stopped)
    }
}

/// The known state of a process.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Process {
    /// Its last heartbeat.
    Heard(Arc<Heartbeat>),
    /// A worker that is on record and never sent a heartbeat.
    Expected {
        /// The id that the fleet's record has of it.
        id: String,
    },
}

impl Process {
    /// The id that it was started with, or that its host name and process id make.
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
    /// What it does, as far as its heartbeats tell.
    pub state: State,
    /// Time since its last heartbeat, milliseconds; absent if it never sent one.
    pub heard_ms_ago: Option<u64>,
    /// How far its clock is ahead of this console's, milliseconds; less than the truth by the time that its heartbeats
    /// take.
    #[serde(skip)]
    pub clock_ahead_ms: i64,
    /// Its known state.
    #[serde(flatten)]
    pub process: Process,
    /// What earlier runs of a worker reported of the tasks that they put off, and how old that is in milliseconds.
    #[serde(skip)]
    pub earlier: Vec<(Arc<Heartbeat>, u64)>,
}

impl MemberView {
    /// Its last heartbeat and how old that is in milliseconds. [`None`] also if it was not checked that the process exists.
    pub(super) fn heard(&self) -> Option<(&Heartbeat, u64)> {
        let beat = self.process.heartbeat().filter(|_| self.state != State::Unconfirmed)?;
        Some((beat, self.heard_ms_ago.unwrap_or(0)))
    }
}

/// The last heartbeats of the processes that may run.
pub(crate) fn beats(members: &[MemberView]) -> impl Iterator<Item = &Heartbeat> {
    members.iter().filter(|it| it.state.runs()).filter_map(|it| it.process.heartbeat())
}

struct Member {
    process: Process,
    /// The last heartbeats of earlier runs whose tasks are not due yet, without what else they reported, and their times.
    earlier: Vec<(Arc<Heartbeat>, i64)>,
    /// Time of its last heartbeat, or of the first check that missed it.
    heard: i64,
    /// Whether it counts: a worker only once its control queue was found.
    confirmed: bool,
    /// Whether the totals include its counters.
    counted: bool,
    /// When it became known.
    since: i64,
    /// The largest difference of a heartbeat's time to the time at which it arrived.
    ahead: i64,
}

/// The processes of a fleet.
///
/// Anybody who may publish a heartbeat can invent processes. Gateways, bridges and workers have limits of their own, and
/// a process that is heard is never removed for another one. Where the roster checks workers, one counts only if it
/// has a control queue, which a user needs a right for that only workers have.
pub struct Roster {
    members: BTreeMap<(Program, String), Member>,
    /// Whether workers have to be confirmed.
    checks: bool,
    /// The workers that had a control queue when the broker last listed its queues.
    listed: BTreeSet<String>,
    starts: Starts,
    hearing: Hearing,
    /// Heartbeats that were refused because there are too many processes.
    refused: u64,
    /// Counters of the whole fleet since `since`.
    totals: Totals,
    since: i64,
}

impl Roster {
    /// An empty roster that counts from `now` on, and takes every worker for a real one.
    pub fn new(now: i64) -> Self {
        Self {
            members: BTreeMap::new(),
            checks: false,
            listed: BTreeSet::new(),
            starts: Starts::default(),
            hearing: Hearing::default(),
            refused: 0,
            totals: Totals::default(),
            since: now,
        }
    }

    /// As [`new`](Self::new); a worker counts once it is confirmed.
    pub fn checking(now: i64) -> Self {
        Self { checks: true, ..Self::new(now) }
    }

    /// Whether a heartbeat is of another run than the last one of its process, which may not be silent yet.
    pub fn is_other_run(&self, beat: &Heartbeat) -> bool {
        let known = self.members.get(&(beat.program, beat.id.clone()));
        let last = known.and_then(|member| member.process.heartbeat());
        last.is_some_and(|last| last.incarnation != beat.incarnation)
    }

    /// Records a heartbeat. One that is older than the last one is ignored, and so is another incarnation of a process
    /// that is heard: its successor is heard when it is silent or has stopped.
    pub fn record(&mut self, beat: Heartbeat, now: i64) {
        let ahead = beat.at.saturating_sub(now);
        let Some(mut beat) = beat.received(now) else { return };
        let key = (beat.program, beat.id.clone());
        let known = self.members.get(&key);
        let old = known.and_then(|member| Some((member, member.process.heartbeat()?)));
        let same_run = old.filter(|(_, old)| old.incarnation == beat.incarnation);
        match (same_run, old) {
            (Some((member, old)), _) if is_late(member, old, &beat, now) => return,
            (Some(_), _) | (None, None) => {}
            (None, Some((member, _)))
                if !matches!(self.state(member, now), State::Silent | State::Stopped) =>
            {
                return;
            }
            (None, Some((member, old))) => {
                // A start that is later than the true one was forged.
                if beat.started_at < old.started_at && now - member.heard < MAX_LATE {
                    return;
                }
            }
        }
        let is_worker = beat.program == Program::Worker;
        let confirmed = !is_worker
            || !self.checks
            || self.listed.contains(&beat.id)
            || same_run.is_some_and(|(member, _)| member.confirmed);
        let counts = confirmed && is_worker;
        if counts {
            match same_run {
                Some((member, old)) if member.counted => self.totals.add(Some(old), &beat),
                _ if old.is_some_and(|(member, _)| member.counted) => self.totals.add(None, &beat),
                // A process that started before the roster: its earlier counts are not part of the totals.
                _ if beat.started_at < self.since => self.totals.add(Some(&beat), &beat),
                _ => self.totals.add(None, &beat),
            }
        }
        let since = same_run.map_or(now, |(member, _)| member.since);
        // A heartbeat that waits on its way only makes a clock look late.
        let ahead = same_run.map_or(ahead, |(member, _)| member.ahead.max(ahead));
        let is_start = same_run.is_none();
        if known.is_none() && !self.has_place(beat.program, confirmed, now) {
            self.refused += 1;
            return;
        }
        if is_start {
            self.starts.add(key.clone(), &beat.incarnation, now, now);
        }
        if !confirmed {
            // Bounds what strangers may fill.
            beat.kinds.clear();
            beat.groups.clear();
            beat.tasks = Vec::new();
        }
        let earlier = self.members.remove(&key).map_or_else(Vec::new, |member| member.earlier(&beat, now));
        let process = Process::Heard(Arc::new(beat));
        let member = Member { process, earlier, heard: now, confirmed, counted: counts, since, ahead };
        self.members.insert(key, member);
    }

    /// Whether there is a place for a new process. A silent one that was heard longest ago leaves for it.
    fn has_place(&mut self, program: Program, confirmed: bool, now: i64) -> bool {
        let most = match program {
            Program::Worker if confirmed => MAX_WORKERS,
            Program::Worker => MAX_UNCONFIRMED,
            Program::Gateway | Program::Bridge => MAX_PRODUCERS,
        };
        let same =
            |(one, _): &(Program, String), member: &Member| *one == program && member.confirmed == confirmed;
        if self.members.iter().filter(|(key, member)| same(key, member)).count() < most {
            return true;
        }
        let over = |member: &Member| matches!(self.state(member, now), State::Silent | State::Stopped);
        let gone = self.members.iter().filter(|(key, member)| same(key, member) && over(member));
        let oldest = gone.min_by_key(|(_, member)| member.heard).map(|(key, _)| key.clone());
        oldest.is_some_and(|key| self.members.remove(&key).is_some())
    }

    /// Adds a worker that is on record, unless it is known. It is silent until its first heartbeat.
    pub fn expect(&mut self, worker: &str, now: i64) {
        let key = (Program::Worker, worker.to_owned());
        if !self.members.contains_key(&key) && self.has_place(Program::Worker, true, now) {
            let process = Process::Expected { id: worker.to_owned() };
            let (earlier, ahead) = (Vec::new(), 0);
            let (confirmed, counted) = (true, false);
            let member = Member { process, earlier, heard: now, confirmed, counted, since: now, ahead };
            self.members.insert(key, member);
        }
    }

    /// Adds the starts of a worker that are on record.
    pub fn add_recorded_starts(&mut self, worker: &str, starts: &ProcessStarts, now: i64) {
        self.starts.add_recorded(worker, starts, now);
    }

    /// How often each worker that runs, or is on record, started within the last minutes.
    pub fn worker_starts(&self, now: i64) -> BTreeMap<&str, usize> {
        let members = self.members.keys().filter(|(program, _)| *program == Program::Worker);
        let members = members.map(|key| (key.1.as_str(), self.starts.count(key, now)));
        members.chain(self.starts.of_recorded_workers(now)).collect()
    }

    /// The workers that are to be confirmed.
    pub fn unconfirmed(&self) -> Vec<String> {
        let members = self.members.iter().filter(|(_, member)| !member.confirmed);
        members.map(|((_, id), _)| id.clone()).collect()
    }

    /// Whether this worker has a control queue. One that has none is removed.
    pub fn confirm(&mut self, worker: &str, has_control_queue: bool) {
        let key = (Program::Worker, worker.to_owned());
        let Some(member) = self.members.get_mut(&key) else { return };
        match has_control_queue {
            true => member.confirmed = true,
            false if !member.confirmed => drop(self.members.remove(&key)),
            false => {}
        }
    }

    /// The workers that have control queues, as the broker lists its queues.
    pub fn confirm_listed(&mut self, workers: BTreeSet<String>, now: i64) {
        for worker in self.unconfirmed() {
            let key = (Program::Worker, worker);
            // The list may be some seconds old.
            match workers.contains(&key.1) {
                true => self.confirm(&key.1, true),
                false if self.members[&key].since < now - FORGET_UNCONFIRMED => {
                    drop(self.members.remove(&key));
                }
                false => {}
            }
        }
        self.listed = workers;
    }

    /// Heartbeats that were refused since the last call because there are too many processes.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Removes processes that have been silent or stopped for longer than their limit. Tasks that they put off count until
    /// they are due.
    pub fn forget(&mut self, now: i64) {
        self.starts.forget(now);
        let hearing = self.hearing;
        self.members.retain(|_, member| {
            let limit = match member.state(&hearing, now) {
                State::Silent if !member.confirmed => 0,
                State::Silent => FORGET_SILENT,
                State::Stopped => FORGET_STOPPED,
                _ => return true,
            };
            let own =
                member.process.heartbeat().is_some_and(|beat| has_waiting(beat, age(member.heard, now)));
            let waits =
                || own || member.earlier.iter().any(|(beat, heard)| has_waiting(beat, age(*heard, now)));
            now - member.heard < limit || member.confirmed && waits()
        });
    }

    /// The processes of a program, by state and then by id.
    pub fn members(&self, program: Program, now: i64) -> Vec<MemberView> {
        let of_program = self.members.iter().filter(|((one, _), _)| *one == program);
        let mut members: Vec<_> = of_program
            .map(|(_, member)| MemberView {
                state: self.state(member, now),
                heard_ms_ago: member.process.heartbeat().map(|_| age(member.heard, now)),
                clock_ahead_ms: member.ahead,
                process: member.process.clone(),
                earlier: member.earlier.iter().map(|(beat, at)| (Arc::clone(beat), age(*at, now))).collect(),
            })
            .collect();
        members.sort_by_key(|member| member.state);
        members
    }

    /// Counters of the whole fleet since the roster was created.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// A connection was made, or an alarm ended: what was sent before could not be heard.
    pub fn begin_hearing(&mut self, now: i64) {
        self.hearing.begin(now);
    }

    /// The broker answered or delivered something, so who sends nothing is silent.
    pub fn hear_broker(&mut self, now: i64) {
        self.hearing.answer(now);
    }

    /// How long the broker has neither answered nor delivered anything, milliseconds.
    pub fn broker_silence(&self, now: i64) -> i64 {
        self.hearing.broker_silence(now)
    }

    fn state(&self, member: &Member, now: i64) -> State {
        member.state(&self.hearing, now)
    }

    /// Whether this incarnation of a worker sent a heartbeat.
    pub fn has_heard(&self, worker: &str, incarnation: &str) -> bool {
        let member = self.members.get(&(Program::Worker, worker.to_owned()));
        member
            .and_then(|member| member.process.heartbeat())
            .is_some_and(|beat| beat.incarnation == incarnation)
    }
}

impl Member {
    fn state(&self, hearing: &Hearing, now: i64) -> State {
        let Some(beat) = self.process.heartbeat() else { return State::Silent };
        let limit = i64::try_from(beat.every_ms.saturating_mul(MAX_MISSED)).unwrap_or(i64::MAX);
        match beat.stance {
            stance if hearing.silence(self.heard, now) > limit && stance != Stance::Stopped => State::Silent,
            _ if !self.confirmed => State::Unconfirmed,
            Stance::Stopped => State::Stopped,
            Stance::Open => State::Open,
            Stance::Quiet => State::Quiet,
            Stance::Stopping => State::Stopping,
        }
    }

    /// What its runs before that of `beat` put off.
    fn earlier(mut self, beat: &Heartbeat, now: i64) -> Vec<(Arc<Heartbeat>, i64)> {
        if let Process::Heard(last) = self.process
            && self.confirmed
            && last.incarnation != beat.incarnation
        {
            let mut last = Arc::unwrap_or_clone(last);
            last.lanes.clear();
            last.groups.clear();
            last.kinds.clear();
            last.tasks = Vec::new();
            self.earlier.push((Arc::new(last), self.heard));
        }
        self.earlier.retain(|(beat, heard)| has_waiting(beat, age(*heard, now)));
        let surplus = self.earlier.len().saturating_sub(MAX_EARLIER);
        self.earlier.drain(..surplus);
        self.earlier
    }
}

/// The time since `then`, milliseconds.
fn age(then: i64, now: i64) -> u64 {
    (now - then).max(0).unsigned_abs()
}

/// Whether a heartbeat was sent before the last one of its incarnation and arrived after it.
///
/// Nothing follows a true `stopped`. A later heartbeat shows that it was forged. One that a forged time or the worker's clock
/// makes look late is believed when the interval has passed: then it is not late.
fn is_late(member: &Member, old: &Heartbeat, beat: &Heartbeat, now: i64) -> bool {
    let is_earlier = beat.at < old.at || beat.at == old.at && old.stance == Stance::Stopped;
    is_earlier && (now - member.heard).unsigned_abs() < beat.every_ms
}

/// The tasks of a kind that a worker reported, without those that no worker can have put off or seen since: when they come
/// back, how many it put off, and how many it saw.
pub(super) fn reported(
    beat: &Heartbeat,
    kind: &UnhandledBeat,
    age: u64,
) -> impl Iterator<Item = (i64, u64, u64)> {
    let now = beat.at.saturating_add_unsigned(age);
    kind.waiting.iter().copied().filter(move |(due, ..)| due.saturating_add(UnhandledBeat::KEPT_MS) >= now)
}

/// Whether tasks that this worker put off are not due yet. `age` is the age of its heartbeat in milliseconds.
fn has_waiting(beat: &Heartbeat, age: u64) -> bool {
    beat.unhandled.iter().any(|kind| reported(beat, kind, age).any(|(_, put_off, _)| put_off > 0))
}

#[cfg(test)]
pub(crate) mod tests;
