//! Everybody who was heard of, and for how long they have been silent.
//!
//! Times are milliseconds since 1970 by this console's clock, given by the caller.

use std::collections::BTreeMap;

use garenne_protocol::heartbeat::{Heartbeat, Program, Stance};
use serde::Serialize;

use super::totals::Totals;

/// Missed beats after which a process counts as silent.
const MISSED: u64 = 3;
/// How long one that is silent is shown, milliseconds.
const FORGET_SILENT: i64 = 10 * 60 * 1000;
/// How long one that said good-bye is shown, milliseconds.
const FORGET_STOPPED: i64 = 60 * 1000;
/// What of a foreign flood of names is kept.
const MOST_MEMBERS: usize = 5_000;

/// How a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Three beats are missing.
    Silent,
    /// On its way down.
    Stopping,
    /// Takes no work for now.
    Quiet,
    /// At work.
    Open,
    /// Said good-bye.
    Stopped,
}

impl State {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Stopping => "stopping",
            Self::Quiet => "quiet",
            Self::Open => "open",
            Self::Stopped => "stopped",
        }
    }
}

/// A process as a console shows it.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView<'r> {
    /// Its id.
    pub id: &'r str,
    /// How it stands.
    pub state: State,
    /// How long ago it was heard, milliseconds; absent where it never was.
    pub heard_ms_ago: Option<u64>,
    /// What it said last.
    #[serde(flatten)]
    pub beat: Option<&'r Heartbeat>,
}

struct Member {
    /// What it said last; absent where it is only on record as living.
    beat: Option<Heartbeat>,
    /// When it was heard, or when it was missed first.
    heard: i64,
}

/// Everybody.
pub struct Roster {
    members: BTreeMap<(Program, String), Member>,
    /// What happened since `since`, over the whole fleet.
    totals: Totals,
    since: i64,
}

impl Roster {
    /// Nobody yet, at `now`.
    pub fn new(now: i64) -> Self {
        Self { members: BTreeMap::new(), totals: Totals::default(), since: now }
    }

    /// Takes a beat; one that is older than what is known says nothing.
    pub fn hear(&mut self, beat: Heartbeat, now: i64) {
        let key = (beat.program, beat.id.clone());
        let known = self.members.get(&key).and_then(|member| member.beat.as_ref());
        if known.is_none() && self.members.len() >= MOST_MEMBERS && !self.members.contains_key(&key) {
            return;
        }
        match known {
            Some(old) if old.incarnation == beat.incarnation => {
                // A good-bye is the last word, whatever arrives late.
                if beat.at < old.at || old.stance == Stance::Stopped {
                    return;
                }
                self.totals.add(Some(old), &beat);
            }
            Some(old) if beat.started_at < old.started_at => return,
            Some(_) => self.totals.add(None, &beat),
            // What one that was there before this console did in its life is not news.
            None if beat.started_at < self.since => self.totals.add(Some(&beat), &beat),
            None => self.totals.add(None, &beat),
        }
        self.members.insert(key, Member { beat: Some(beat), heard: now });
    }

    /// Notes a worker that should be there; until it is heard it is silent.
    pub fn miss(&mut self, worker: &str, now: i64) {
        let key = (Program::Worker, worker.to_owned());
        self.members.entry(key).or_insert(Member { beat: None, heard: now });
    }

    /// Lets go of those who have been silent, or stopped, for long enough.
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

    /// Everybody of a program, by id.
    pub fn members(&self, program: Program, now: i64) -> impl Iterator<Item = MemberView<'_>> {
        let of_program = self.members.iter().filter(move |((one, _), _)| *one == program);
        of_program.map(move |((_, id), member)| MemberView {
            id,
            state: state(member, now),
            heard_ms_ago: member.beat.as_ref().map(|_| (now - member.heard).max(0).unsigned_abs()),
            beat: member.beat.as_ref(),
        })
    }

    /// What happened over the whole fleet since this roster began.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether this life of a worker was heard.
    pub fn has_heard(&self, worker: &str, incarnation: &str) -> bool {
        let member = self.members.get(&(Program::Worker, worker.to_owned()));
        member.and_then(|member| member.beat.as_ref()).is_some_and(|beat| beat.incarnation == incarnation)
    }
}

fn state(member: &Member, now: i64) -> State {
    let Some(beat) = &member.beat else { return State::Silent };
    if beat.stance == Stance::Stopped {
        return State::Stopped;
    }
    let overdue = i64::try_from(beat.every_ms.saturating_mul(MISSED)).unwrap_or(i64::MAX);
    if beat.every_ms > 0 && now - member.heard > overdue {
        return State::Silent;
    }
    match beat.stance {
        Stance::Open => State::Open,
        Stance::Quiet => State::Quiet,
        Stance::Stopping | Stance::Stopped => State::Stopping,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use garenne_protocol::heartbeat::KindBeat;

    use super::*;

    /// A beat of worker `w` in its life `incarnation`, which began at `started_at`, after `done` tasks.
    pub(crate) fn beat(incarnation: &str, started_at: i64, at: i64, done: u64) -> Heartbeat {
        let mut beat: Heartbeat = serde_json::from_value(serde_json::json!({
            "program": "worker", "id": "w", "incarnation": incarnation, "started_at": started_at,
            "at": at, "every_ms": 2000, "stance": "open",
        }))
        .unwrap();
        let outcomes = [("success".to_owned(), done)].into();
        let kind = KindBeat { started: done, outcomes, buckets: vec![done], ..KindBeat::default() };
        beat.kinds.insert("k".into(), kind);
        beat
    }

    fn states(roster: &Roster, now: i64) -> Vec<State> {
        roster.members(Program::Worker, now).map(|member| member.state).collect()
    }

    #[test]
    fn three_missing_beats_are_silence_and_silence_is_forgotten() {
        let mut roster = Roster::new(0);
        roster.hear(beat("i", 0, 0, 0), 1_000);
        assert_eq!(states(&roster, 7_000), [State::Open]);
        assert_eq!(states(&roster, 7_001), [State::Silent]);
        roster.forget(1_000 + FORGET_SILENT - 1);
        assert_eq!(states(&roster, 7_001), [State::Silent]);
        roster.forget(1_000 + FORGET_SILENT);
        assert!(states(&roster, 7_001).is_empty());
    }

    #[test]
    fn a_good_bye_is_the_last_word_of_a_life() {
        let mut roster = Roster::new(0);
        let mut bye = beat("i", 0, 5, 0);
        bye.stance = Stance::Stopped;
        roster.hear(bye, 10);
        roster.hear(beat("i", 0, 6, 0), 11);
        assert_eq!(states(&roster, 20_000), [State::Stopped]);
        roster.hear(beat("j", 7, 8, 0), 12);
        assert_eq!(states(&roster, 12), [State::Open]);
        roster.hear(beat("i", 0, 9, 0), 13);
        assert!(roster.has_heard("w", "j"), "a late word of an earlier life");
    }

    #[test]
    fn one_who_should_be_there_and_says_nothing_is_silent() {
        let mut roster = Roster::new(0);
        roster.miss("w", 100);
        assert_eq!(states(&roster, 100), [State::Silent]);
        roster.hear(beat("i", 0, 0, 0), 200);
        roster.miss("w", 300);
        assert_eq!(states(&roster, 300), [State::Open]);
    }

    #[test]
    fn counters_become_what_happened_since() {
        let done = |roster: &Roster| roster.totals().kinds.get("k").map_or(0, |kind| kind.done);
        let mut roster = Roster::new(1_000);
        roster.hear(beat("old", 10, 1_500, 700), 1_500);
        assert_eq!(done(&roster), 0, "it had done that before");
        roster.hear(beat("old", 10, 1_600, 705), 1_600);
        roster.hear(beat("old", 10, 1_550, 703), 1_601);
        assert_eq!(done(&roster), 5);
        roster.hear(beat("new", 1_650, 1_700, 3), 1_700);
        assert_eq!(done(&roster), 8, "another life counts from zero");
    }

    #[test]
    fn a_flood_of_names_has_a_bound() {
        let mut roster = Roster::new(0);
        for n in 0..MOST_MEMBERS + 10 {
            roster.hear(Heartbeat { id: n.to_string(), ..beat("i", 0, 0, 0) }, 0);
        }
        assert_eq!(states(&roster, 0).len(), MOST_MEMBERS);
    }
}
