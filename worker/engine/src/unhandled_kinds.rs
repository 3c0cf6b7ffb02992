//! The kinds whose tasks this worker put off because no running worker of the fleet has a handler for them.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use garenne_protocol::heartbeat::UnhandledBeat;
use prometheus::IntGaugeVec;

use crate::panics::lock;

/// The most kinds that are counted by name. Publishers choose the names.
const MOST_KINDS: usize = 1000;
/// The most kinds that a metric names.
const MOST_SERIES: usize = 32;
/// The name under which all further kinds are counted.
const OTHERS: &str = "(other kinds)";
/// How exactly tasks are told apart that come back after a long delay, in milliseconds.
const MAX_STEP: i64 = 20_000;
/// The most times under which tasks of one kind count.
const MOST_TIMES: usize = 64;

/// The tasks that wait in retry queues for a handler, by lane and kind.
///
/// A task that is put off counts at its worker under the time at which it comes back, which its copy carries. Whichever
/// worker receives the copy reports that it saw a task of this time, in the heartbeat that counts it again if it is put off
/// again. So the sums over all workers are exact although heartbeats differ in age.
#[derive(Debug, Default)]
pub(crate) struct UnhandledKinds(Mutex<Kinds>);

type Kinds = BTreeMap<(Arc<str>, String), Waiting>;

/// The tasks of one kind in one lane, by the time at which they come back.
#[derive(Debug, Default)]
struct Waiting(BTreeMap<i64, Due>);

#[derive(Debug)]
struct Due {
    /// Tasks that this worker put off until then.
    put_off: u64,
    /// Tasks that this worker received and that any worker had put off until then.
    seen: u64,
    /// Since when the task that waits for longest has been waiting.
    since: i64,
}

impl UnhandledKinds {
    /// Adds a task that has been waiting since `since` and comes back after `delay`. Its copy counted under `earlier` if it
    /// was put off before. Times are milliseconds since 1970. Returns under which time it counts, and whether it is the only
    /// one of its kind.
    pub(crate) fn put_off(
        &self,
        lane: &Arc<str>,
        kind: &str,
        since: i64,
        earlier: Option<i64>,
        now: i64,
        delay: i64,
    ) -> (i64, bool) {
        // Rounded up, so that heartbeats report few times.
        let step = (delay / 8).clamp(1_000, MAX_STEP);
        let due = (now + delay).div_euclid(step) * step + step;
        let mut kinds = lock(&self.0);
        if let Some(earlier) = earlier {
            see(&mut kinds, lane, kind, earlier, now);
        }
        let waiting = entry(&mut kinds, lane, kind, now);
        let is_first = waiting.0.values().all(|due| due.put_off == 0);
        let latest = waiting.0.keys().next_back().copied();
        let due = if waiting.has_place(due) { due } else { latest.unwrap_or(due) };
        waiting.at(due, since).put_off += 1;
        (due, is_first)
    }

    /// Ends the count of a task that was put off until `due` and is not put off again.
    pub(crate) fn seen(&self, lane: &Arc<str>, kind: &str, due: i64, now: i64) {
        see(&mut lock(&self.0), lane, kind, due, now);
    }

    /// The kinds with tasks that wait at `now`, or were due just before, those with the most first.
    pub(crate) fn beats(&self, now: i64) -> Vec<UnhandledBeat> {
        let mut kinds = lock(&self.0);
        kinds.retain(|_, waiting| waiting.is_recent(now));
        let beat = |((lane, kind), Waiting(waiting)): (&(Arc<str>, String), &Waiting)| {
            let put_off = || waiting.iter().filter(|(_, due)| due.put_off > 0);
            UnhandledBeat {
                lane: lane.to_string(),
                kind: kind.clone(),
                tasks: put_off().filter(|(at, _)| **at > now).map(|(_, due)| due.put_off).sum(),
                since: put_off().map(|(_, due)| due.since).min().unwrap_or(now),
                waiting: waiting.iter().map(|(at, due)| (*at, due.put_off, due.seen)).collect(),
            }
        };
        let mut beats: Vec<_> = kinds.iter().map(beat).collect();
        drop(kinds);
        beats.sort_by_key(|beat| Reverse(beat.tasks));
        beats
    }

    /// Sets the metric, which has the labels lane and kind. It is never 0 for a moment, because alerts would end.
    pub(crate) fn export(&self, gauges: &IntGaugeVec, now: i64) {
        gauges.reset();
        for UnhandledBeat { lane, kind, tasks, .. } in self.beats(now).into_iter().take(MOST_SERIES) {
            gauges.with_label_values(&[lane, kind]).set(tasks.max(1).try_into().unwrap_or(i64::MAX));
        }
    }
}

fn see(kinds: &mut Kinds, lane: &Arc<str>, kind: &str, due: i64, now: i64) {
    // Heartbeats do not report an earlier time any more, and a later one is forged.
    let is_recent = (now - UnhandledBeat::KEPT_MS..=now + UnhandledBeat::KEPT_MS + MAX_STEP).contains(&due);
    if !is_recent {
        return;
    }
    let waiting = entry(kinds, lane, kind, now);
    if waiting.has_place(due) {
        waiting.at(due, now).seen += 1;
    }
}

/// The tasks of a kind; those of all further kinds if there are too many.
fn entry<'a>(kinds: &'a mut Kinds, lane: &Arc<str>, kind: &str, now: i64) -> &'a mut Waiting {
    let key = (Arc::clone(lane), kind.to_owned());
    let is_counted = kinds.len() < MOST_KINDS || kinds.contains_key(&key);
    let waiting = kinds.entry(if is_counted { key } else { (key.0, OTHERS.to_owned()) }).or_default();
    waiting.is_recent(now);
    waiting
}

impl Waiting {
    /// Removes the times that are not reported any more. Returns whether any is left.
    fn is_recent(&mut self, now: i64) -> bool {
        self.0.retain(|due, _| due.saturating_add(UnhandledBeat::KEPT_MS) >= now);
        !self.0.is_empty()
    }

    /// Whether tasks may count under this time too.
    fn has_place(&self, due: i64) -> bool {
        self.0.len() < MOST_TIMES || self.0.contains_key(&due)
    }

    /// The tasks that come back at `due`.
    fn at(&mut self, due: i64, since: i64) -> &mut Due {
        let due = self.0.entry(due).or_insert(Due { put_off: 0, seen: 0, since });
        due.since = due.since.min(since);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(kinds: &UnhandledKinds, now: i64) -> Vec<(String, u64, i64)> {
        kinds.beats(now).into_iter().map(|beat| (beat.kind, beat.tasks, beat.since)).collect()
    }

    #[test]
    fn a_task_is_reported_until_it_is_seen_again() {
        let (kinds, lane) = (UnhandledKinds::default(), Arc::from("mail"));
        assert_eq!(kinds.put_off(&lane, "email.send", 500, None, 500, 1_000), (2_000, true));
        assert_eq!(kinds.put_off(&lane, "email.send", 100, None, 500, 8_000), (9_000, false));
        assert_eq!(kinds.put_off(&lane, "sms.send", 600, None, 600, 8_000), (9_000, true));
        assert_eq!(counted(&kinds, 1_999), [("email.send".into(), 2, 100), ("sms.send".into(), 1, 600)]);
        assert_eq!(counted(&kinds, 2_000)[0], ("email.send".into(), 1, 100));
        assert_eq!(kinds.put_off(&lane, "email.send", 500, Some(2_000), 2_010, 5_000), (8_000, false));
        assert_eq!(kinds.beats(2_010)[0].waiting, [(2_000, 1, 1), (8_000, 1, 0), (9_000, 1, 0)]);
        kinds.seen(&lane, "sms.send", 9_000, 9_001);
        assert_eq!(kinds.beats(9_001)[1].waiting, [(9_000, 1, 1)]);
        assert_eq!(counted(&kinds, 9_000 + UnhandledBeat::KEPT_MS).len(), 2);
        assert_eq!(counted(&kinds, 9_001 + UnhandledBeat::KEPT_MS), []);
        assert_eq!(
            kinds.put_off(&lane, "email.send", 1, None, 30_000, 1_000),
            (32_000, true),
            "it waits anew"
        );
    }

    #[test]
    fn names_and_times_that_publishers_choose_are_bounded() {
        let (kinds, lane) = (UnhandledKinds::default(), Arc::from("default"));
        let put_off = |n| kinds.put_off(&lane, &format!("kind.{n}"), 0, None, 0, 1_000);
        assert_eq!((0..10 * MOST_KINDS).filter(|n| put_off(*n).1).count(), MOST_KINDS + 1);
        let beats = counted(&kinds, 0);
        assert_eq!(beats[0], (OTHERS.to_owned(), 9 * MOST_KINDS as u64, 0));
        assert_eq!(beats.len(), MOST_KINDS + 1);
        (0..40_000).for_each(|due| kinds.seen(&lane, "kind.1", due, 0));
        assert!(kinds.beats(0).iter().all(|beat| beat.waiting.len() <= MOST_TIMES));
    }
}
