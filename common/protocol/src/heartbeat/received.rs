//! Bounds on a received heartbeat. Its sender may be a stranger, so sizes and numbers are bounded before it is kept.

use std::collections::BTreeMap;

use super::{Heartbeat, MAX_ID, MOST_TASKS, Program, UnhandledBeat, cut};

/// The most bytes of a name or text that is kept: ids, kinds, groups, and the keys of maps.
const MAX_TEXT: usize = 255;
/// The most lanes, and the most sinks.
const MAX_LANES: usize = 64;
/// The most kinds.
const MAX_KINDS: usize = 128;
/// The most entries of other maps: outcomes, reasons, statuses, connections.
const MAX_LABELS: usize = 32;
/// The most buckets of durations.
const MAX_BUCKETS: usize = 32;
/// The most times at which tasks without a handler come back, of one kind.
const MAX_DUE: usize = 64;
/// The largest number of slots or tasks of one process.
const MAX_COUNT: usize = 1_000_000;
/// The largest counter: sums of many do not overflow, and every JSON reader represents it exactly.
const MAX_TOTAL: u64 = 1 << 48;
/// The longest duration, in seconds: more than 30 years.
const MAX_SECONDS: f64 = 1e9;
/// The interval between two heartbeats that settings allow, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 100..=60_000;

impl Heartbeat {
    /// Bounds what a reader keeps of a heartbeat that it received at `now` (milliseconds since 1970): at most 120 kB,
    /// and 2 kB for each kind. What the programs of a fleet send stays as it is, besides times ahead of
    /// the reader's clock. `None` if the id is longer than a routing key can be.
    #[must_use]
    pub fn received(mut self, now: i64) -> Option<Self> {
        if self.id.len() > MAX_ID {
            return None;
        }
        if self.program != Program::Worker {
            // Only workers run tasks.
            let Self {
                lanes, paused, paused_kinds, groups, tasks, unhandled, not_ready, kinds, sinks, ..
            } = &mut self;
            lanes.clear();
            unhandled.clear();
            not_ready.clear();
            groups.clear();
            kinds.clear();
            sinks.clear();
            *tasks = Vec::new();
            *paused = Vec::new();
            *paused_kinds = Vec::new();
        }
        self.bound();
        // A time in the future would make every later heartbeat an older one.
        self.at = self.at.min(now);
        self.started_at = self.started_at.min(now);
        self.every_ms = self.every_ms.clamp(*INTERVAL_MS.start(), *INTERVAL_MS.end());
        self.running = self.running.min(MAX_COUNT);
        [&mut self.incarnation, &mut self.host, &mut self.version].into_iter().for_each(text);
        self.denied.iter_mut().for_each(text);
        [&mut self.paused, &mut self.paused_kinds].into_iter().for_each(texts);
        keep(&mut self.groups, MOST_TASKS);
        for group in self.groups.values_mut() {
            group.running = group.running.min(MAX_COUNT);
            group.queued = group.queued.min(MAX_COUNT);
        }
        self.tasks.shrink_to_fit();
        for task in &mut self.tasks {
            [&mut task.id, &mut task.kind, &mut task.lane].into_iter().chain(&mut task.group).for_each(text);
            seconds(&mut task.seconds);
            task.progress = task.progress.map(|progress| progress.clamp(0.0, 1.0));
        }
        for UnhandledBeat { lane, kind, tasks, waiting, .. } in &mut self.unhandled {
            [lane, kind].into_iter().for_each(text);
            total(tasks);
            waiting.truncate(MAX_DUE);
            waiting.shrink_to_fit();
            waiting.iter_mut().flat_map(|(_, put_off, seen)| [put_off, seen]).for_each(total);
        }
        keep(&mut self.not_ready, MOST_TASKS);
        self.not_ready.values_mut().for_each(|handler| text(&mut handler.problem));
        self.bound_counters();
        Some(self)
    }

    fn bound_counters(&mut self) {
        keep(&mut self.lanes, MAX_LANES);
        for lane in self.lanes.values_mut() {
            let counts = [&mut lane.slots, &mut lane.busy, &mut lane.queued, &mut lane.capacity];
            counts.into_iter().for_each(|count| *count = (*count).min(MAX_COUNT));
            let totals = [&mut lane.stuck, &mut lane.restarts, &mut lane.delivered, &mut lane.held];
            totals.into_iter().chain([&mut lane.removed]).for_each(total);
            [&mut lane.waited, &mut lane.running_for].into_iter().for_each(seconds);
            lane.trouble.iter_mut().for_each(text);
        }
        keep(&mut self.kinds, MAX_KINDS);
        for kind in self.kinds.values_mut() {
            total(&mut kind.started);
            counters(&mut kind.outcomes);
            counters(&mut kind.dead);
            seconds(&mut kind.seconds);
            kind.buckets.truncate(MAX_BUCKETS);
            kind.buckets.shrink_to_fit();
            kind.buckets.iter_mut().for_each(total);
            let recent = &mut kind.recent;
            [&mut recent.ended, &mut recent.latest_ended, &mut recent.dead].into_iter().for_each(total);
            [&mut recent.seconds, &mut recent.latest_seconds].into_iter().for_each(seconds);
        }
        keep(&mut self.connections, MAX_LABELS);
        self.connections.values_mut().for_each(|connection| total(&mut connection.epoch));
        keep(&mut self.sinks, MAX_LANES);
        self.sinks.values_mut().filter_map(|sink| sink.trouble.as_mut()).for_each(text);
        if let Some(gateway) = &mut self.gateway {
            keep(&mut gateway.connections, MAX_LABELS);
            counters(&mut gateway.requests);
        }
        if let Some(bridge) = &mut self.bridge {
            text(&mut bridge.broker);
            texts(&mut bridge.subscriptions);
            total(&mut bridge.in_flight);
            counters(&mut bridge.messages);
        }
        if let Some(spool) = &mut self.spool {
            let set_aside = [&mut spool.records, &mut spool.bytes, &mut spool.set_aside_bytes];
            set_aside.into_iter().for_each(total);
            spool.set_aside = spool.set_aside.min(MAX_COUNT);
        }
    }
}

fn text(text: &mut String) {
    cut(text, MAX_TEXT);
    text.shrink_to_fit();
}

fn texts(texts: &mut Vec<String>) {
    texts.shrink_to_fit();
    texts.iter_mut().for_each(text);
}

fn seconds(seconds: &mut f64) {
    *seconds = seconds.clamp(0.0, MAX_SECONDS);
}

fn total(total: &mut u64) {
    *total = (*total).min(MAX_TOTAL);
}

fn counters(counters: &mut BTreeMap<String, u64>) {
    keep(counters, MAX_LABELS);
    counters.values_mut().for_each(total);
}

/// Keeps the first `most` entries, without those whose key is too long: a cut one could be another's.
fn keep<V>(map: &mut BTreeMap<String, V>, most: usize) {
    map.retain(|key, _| key.len() <= MAX_TEXT);
    while map.len() > most {
        map.pop_last();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::heartbeat::RecentBeat;

    const NOW: i64 = 1_700_000_000_000;

    fn received(program: &str, fields: Value) -> Heartbeat {
        let mut beat = json!({
            "program": program, "id": "w", "incarnation": "i", "started_at": 1, "at": 2, "every_ms": 2000,
            "stance": "open",
        });
        beat.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value::<Heartbeat>(beat).unwrap().received(NOW).unwrap()
    }

    #[test]
    fn what_a_worker_sends_stays_as_it_is() {
        let fields = json!({
            "host": "h", "version": "1.2.3", "paused": ["g"], "paused_kinds": ["k"], "running": 3,
            "lanes": {"fast": {"slots": 256, "busy": 200, "queued": 40, "capacity": 2_000, "held": 240,
                               "delivered": 9_007_199_254u64, "removed": 9_007_199_000u64, "waited": 1e6}},
            "groups": {"g": {"running": 1, "queued": 2}},
            "tasks": [{"id": "t", "kind": "k", "lane": "fast", "seconds": 86_400.5, "progress": 0.5}],
            "kinds": {"k": {"started": 5, "outcomes": {"success": 4}, "dead": {"stopped": 1}, "seconds": 3.5,
                            "buckets": [1, 2, 1]}},
            "connections": {"publish": {"up": true, "epoch": 3}}, "sinks": {"postgres": {"up": true}},
            "not_ready": {"image.*": {"since": 7, "problem": "cannot start"}},
        });
        let beat = received("worker", fields);
        let again = beat.clone().received(NOW).unwrap();
        assert_eq!(again, beat);
        assert_eq!((beat.lanes["fast"].delivered, beat.kinds["k"].buckets.len()), (9_007_199_254, 3));
        assert_eq!((beat.every_ms, beat.tasks[0].seconds), (2_000, 86_400.5));
    }

    #[test]
    fn numbers_and_times_are_bounded() {
        let beat = received(
            "worker",
            json!({
                "at": i64::MAX, "started_at": i64::MAX, "every_ms": u64::MAX, "running": u64::MAX,
                "lanes": {"fast": {"slots": u64::MAX, "busy": 60_000_000, "held": u64::MAX, "removed": u64::MAX,
                                   "waited": -1.0, "running_for": 1e308}},
                "kinds": {"k": {"outcomes": {"success": u64::MAX}, "seconds": 1e308, "buckets": [u64::MAX],
                                "recent": {"ended": u64::MAX, "seconds": -1.0, "dead": u64::MAX}}},
                "tasks": [{"id": "t", "lane": "fast", "seconds": -1e308, "progress": 7.0}],
            }),
        );
        assert_eq!((beat.at, beat.started_at, beat.every_ms), (NOW, NOW, 60_000));
        let lane = &beat.lanes["fast"];
        assert_eq!((lane.slots, lane.busy, beat.running), (MAX_COUNT, MAX_COUNT, MAX_COUNT));
        assert_eq!((lane.held, lane.removed), (MAX_TOTAL, MAX_TOTAL));
        assert_eq!((lane.waited, lane.running_for), (0.0, MAX_SECONDS));
        let kind = &beat.kinds["k"];
        assert_eq!(
            (kind.outcomes["success"], kind.seconds, kind.buckets[0]),
            (MAX_TOTAL, MAX_SECONDS, MAX_TOTAL)
        );
        let recent = RecentBeat { ended: MAX_TOTAL, dead: MAX_TOTAL, ..RecentBeat::default() };
        assert_eq!(kind.recent, recent);
        assert_eq!((beat.tasks[0].seconds, beat.tasks[0].progress), (0.0, Some(1.0)));
        assert_eq!(received("worker", json!({"every_ms": 0})).every_ms, 100, "0 would never be overdue");
    }

    #[test]
    fn the_largest_heartbeats_become_small() {
        let names = |count: usize, value: Value| -> Value {
            (0..count).map(|n| (format!("{n:05}"), value.clone())).collect::<serde_json::Map<_, _>>().into()
        };
        let long = "ä".repeat(500);
        let fields = json!({
            "host": long, "version": long, "incarnation": long, "paused": vec![&long; 100],
            "lanes": names(500, json!({"trouble": long})), "groups": names(500, json!({})),
            "not_ready": names(500, json!({"problem": long.repeat(3)})), "unhandled": vec![json!({"lane": long}); 50],
            "sinks": names(500, json!({"trouble": long})), "connections": names(500, json!({})),
            "tasks": vec![json!({"id": long, "kind": long, "lane": long, "group": long}); 100],
            "kinds": names(500, json!({"outcomes": names(100, json!(1)), "buckets": vec![1; 2_000]})),
            "gateway": {"requests": names(500, json!(1)), "connections": names(500, json!(1))},
            "bridge": {"broker": long, "subscriptions": vec![&long; 2_000], "messages": names(500, json!(1))},
        });
        for (program, most) in [("worker", 120_000), ("gateway", 20_000), ("bridge", 20_000)] {
            let mut beat = received(program, fields.clone());
            beat.kinds.clear();
            let size = serde_json::to_vec(&beat).unwrap().len();
            assert!(size < most, "{program}: {size}");
        }
        let beat = received("worker", json!({"lanes": {(long.as_str()): {}, "fast": {}}}));
        assert_eq!(beat.lanes.keys().collect::<Vec<_>>(), ["fast"]);
        let forged = Heartbeat { id: long, ..beat };
        assert_eq!(forged.received(NOW), None);
    }
}
