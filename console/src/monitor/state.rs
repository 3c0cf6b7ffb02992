//! The monitor's present knowledge.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use garenne_operator::{operator::Operator, queues::Snapshot};
use garenne_protocol::topology::Difference;

use super::{history::SampleHistory, lane, pauses::KnownPauses, sample::Sample};
use crate::{
    diagnose::{Code, Facts, Problem, diagnose},
    fleet::{RecordedWorker, Roster},
};

/// How long the broker may deliver nothing before that is a problem, milliseconds: a check every five seconds is answered.
/// The counts of the queues, which are taken as often, usually notice first that it does not answer.
const MAX_BROKER_SILENCE: i64 = 10_000;
/// How long a worker that was not asked may take to send a heartbeat, milliseconds.
const FIRST_HEARTBEAT: i64 = 10_000;

/// The state behind the monitor's lock.
pub(super) struct MonitorState {
    pub(super) roster: Roster,
    pub(super) history: SampleHistory,
    /// The newest snapshot of the queues.
    pub(super) snapshot: Option<Snapshot>,
    /// Why the last snapshot failed; `None` after a successful one.
    pub(super) queue_problem: Option<String>,
    /// Why no heartbeats arrive; `None` while the listener is connected.
    fleet_problem: Option<String>,
    /// Whether the workers on record had the time to answer.
    pub(super) first_heard: bool,
    /// Whether a first look at the fleet has ended. Nothing is known before.
    pub(super) has_looked: bool,
    /// What the broker lacks, while an alarm blocks this console's messages.
    alarm: Option<String>,
    /// Why the workers' database does not answer.
    pub(super) database_problem: Option<String>,
    /// How the broker differs from the settings, or why that is not known.
    pub(super) differences: Result<Vec<Difference>, String>,
    /// Whether the management API reports an alarm, for a console that may not publish, or why that is not known.
    reported_alarm: Result<Option<String>, String>,
    /// Who paused what.
    pub(super) pauses: KnownPauses,
    /// Since when the present problems last.
    since: BTreeMap<(Code, String), i64>,
    /// Unroutable messages since the console started.
    pub(super) unroutable: u64,
}

impl MonitorState {
    /// `checks` tells whether workers can be told from processes that only claim to be some.
    pub(super) fn new(checks: bool, now: i64) -> Self {
        Self {
            roster: if checks { Roster::checking(now) } else { Roster::new(now) },
            history: SampleHistory::default(),
            snapshot: None,
            queue_problem: Some("no answer yet".to_owned()),
            fleet_problem: Some("not connected yet".to_owned()),
            first_heard: false,
            has_looked: false,
            alarm: None,
            database_problem: None,
            differences: Ok(Vec::new()),
            reported_alarm: Ok(None),
            pauses: KnownPauses::none(),
            since: BTreeMap::new(),
            unroutable: 0,
        }
    }

    /// The connection of the heartbeats is open.
    pub(super) fn connected(&mut self, now: i64) {
        self.fleet_problem = None;
        self.roster.begin_hearing(now);
    }

    /// The connection of the heartbeats is lost.
    pub(super) fn lost(&mut self, error: &str) {
        self.fleet_problem = Some(error.to_owned());
        self.first_heard = true;
        self.alarm = None;
    }

    /// The broker has delivered something, and has this alarm.
    pub(super) fn broker_heard(&mut self, alarm: Option<&str>, now: i64) {
        match self.alarm.is_some() && alarm.is_none() {
            true => self.roster.begin_hearing(now),
            false => self.roster.hear_broker(now),
        }
        self.alarm = alarm.map(str::to_owned);
    }

    /// The management API has reported whether there is an alarm.
    pub(super) fn alarm_reported(&mut self, reported: Result<Option<String>, String>, now: i64) {
        let had_alarm = self.present_alarm().is_some();
        self.reported_alarm = reported;
        if had_alarm && self.present_alarm().is_none() {
            self.roster.begin_hearing(now);
        }
    }

    /// The broker has not answered in time.
    pub(super) fn no_answer(&mut self, problem: String) {
        self.queue_problem = Some(problem);
        self.has_looked = true;
    }

    /// Adds the starts of workers on record, and those workers that should have been heard.
    pub(super) fn add_recorded(
        &mut self,
        recorded: &BTreeMap<String, RecordedWorker>,
        were_asked: bool,
        now: i64,
    ) {
        for (name, worker) in recorded {
            if worker.runs && were_asked || worker.is_due(FIRST_HEARTBEAT, now) {
                self.roster.expect(name, now);
            }
            self.roster.add_recorded_starts(name, &worker.starts, now);
        }
    }

    /// Why no heartbeats arrive.
    pub(super) fn fleet_problem(&self, now: i64) -> Option<Cow<'_, str>> {
        let silence = self.roster.broker_silence(now);
        match &self.fleet_problem {
            Some(problem) => Some(problem.into()),
            // The broker answers no check while an alarm blocks this console.
            None if silence > MAX_BROKER_SILENCE && self.present_alarm().is_none() => {
                Some(format!("the broker has answered nothing for {}s", silence / 1000).into())
            }
            None => None,
        }
    }

    /// Whether heartbeats can arrive.
    pub(super) fn is_heard(&self, now: i64) -> bool {
        self.fleet_problem(now).is_none() && self.present_alarm().is_none()
    }

    /// Why the workers are not known.
    pub(super) fn unheard(&self, now: i64) -> Option<String> {
        let problem = self.fleet_problem(now).map(Cow::into_owned);
        let of_alarm = |alarm| format!("an alarm of the broker blocks publishers ({alarm})");
        problem.or_else(|| self.present_alarm().map(of_alarm))
    }

    /// What the broker lacks, while an alarm blocks publishers.
    fn present_alarm(&self) -> Option<&str> {
        let reported = self.reported_alarm.as_ref().ok().and_then(Option::as_deref);
        self.alarm.as_deref().or(reported)
    }

    /// What is wrong, and since when, the worst first.
    pub(super) fn diagnose(&mut self, operator: &Operator, objective: Duration, now: i64) -> Vec<Problem> {
        if !self.has_looked {
            return Vec::new();
        }
        let empty = BTreeMap::new();
        let fleet_problem = self.fleet_problem(now).map(Cow::into_owned);
        let mut problems = diagnose(&Facts {
            now,
            operator,
            queue_problem: self.queue_problem.as_deref(),
            fleet_problem: fleet_problem.as_deref(),
            alarm: self.present_alarm(),
            database_problem: self.database_problem.as_deref(),
            snapshot: self.snapshot.as_ref(),
            lanes: self.history.newest().map_or(&empty, |sample| &sample.lanes),
            roster: &self.roster,
            objective,
            new_letters: self.history.new_letters(),
            differences: self.differences.as_deref().map_err(String::as_str),
            alarms_unseen: self.reported_alarm.as_ref().err().map(String::as_str),
            pauses: self.pauses.records.as_ref().map_err(String::as_str),
        });
        let mut lasting = BTreeMap::new();
        for problem in &mut problems {
            let (code, subject) = problem.key();
            let key = (code, subject.to_owned());
            // A pause is older than its first heartbeat here.
            if problem.since.is_none() && code == Code::Paused {
                continue;
            }
            let since = problem.since.or_else(|| self.since.get(&key).copied()).unwrap_or(now);
            problem.since = Some(since);
            lasting.insert(key, since);
        }
        self.since = lasting;
        problems
    }

    /// Adds a sample of the given queues and the known processes to the history.
    pub(super) fn record(&mut self, operator: &Operator, snapshot: Snapshot, now: i64) {
        self.unroutable += match &self.snapshot {
            Some(before) => newly_unroutable(&snapshot, before),
            None => snapshot.unroutable.ready,
        };
        if let Some(workers) = &snapshot.control_queues {
            self.roster.confirm_listed(workers.clone(), now);
        }
        let lane = |status| lane::sample(operator, &self.roster, &self.history, status, now);
        let lanes = snapshot.lanes.iter().map(|status| (status.name.clone(), lane(status))).collect();
        let sample = Sample {
            at: now,
            lanes,
            totals: self.roster.totals().clone(),
            dead: snapshot.dead.held(),
            quarantine: snapshot.quarantine.held(),
            unroutable: snapshot.unroutable.ready,
        };
        self.history.push(sample);
        self.snapshot = Some(snapshot);
    }
}

/// Messages that became unroutable between two snapshots. Without the broker's counter the growth of the queue
/// stands in for it.
fn newly_unroutable(now: &Snapshot, before: &Snapshot) -> u64 {
    let (now, before) = (&now.unroutable, &before.unroutable);
    match (now.published, before.published) {
        (Some(now), Some(before)) => now.saturating_sub(before),
        // The broker has no counter until the first message arrives.
        (Some(now), None) => now,
        _ => now.ready.saturating_sub(before.ready),
    }
}
