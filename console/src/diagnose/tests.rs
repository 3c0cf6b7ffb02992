mod broker;

use std::collections::BTreeMap;

use garenne_operator::{
    queues::{QueueStatus, Source},
    settings::FleetSettings,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    audit_log::PausedBy,
    scale::{self, Load},
};

const NOW: i64 = 1_000_000;

/// A fleet of which only what a test sets is wrong.
struct Fleet {
    operator: Operator,
    snapshot: Snapshot,
    lanes: BTreeMap<String, LaneSample>,
    roster: Roster,
    fleet_problem: Option<&'static str>,
    queue_problem: Option<&'static str>,
    alarm: Option<&'static str>,
    database_problem: Option<&'static str>,
    new_letters: Option<(u64, i64)>,
    pauses: Result<PauseRecords, &'static str>,
    differences: Result<Vec<Difference>, &'static str>,
    alarms_unseen: Option<&'static str>,
}

impl Fleet {
    fn new() -> Self {
        let snapshot = Snapshot {
            broker: "b:5672".into(),
            vhost: "/".into(),
            version: "4.0.5".into(),
            prefix: "garenne".into(),
            source: Source::Amqp,
            read_at: NOW,
            lanes: Vec::new(),
            quarantine: QueueStatus::default(),
            dead: QueueStatus::default(),
            unroutable: QueueStatus::default(),
            missing: Vec::new(),
            control_queues: None,
            queues: [].into(),
        };
        let operator = Operator::new(FleetSettings::default()).unwrap();
        let mut fleet = Self {
            operator,
            snapshot,
            lanes: BTreeMap::new(),
            roster: Roster::new(0),
            fleet_problem: None,
            queue_problem: None,
            alarm: None,
            database_problem: None,
            new_letters: None,
            pauses: Ok(PauseRecords::new()),
            differences: Ok(Vec::new()),
            alarms_unseen: None,
        };
        fleet.hear("worker", "w", json!({}));
        fleet
    }

    /// A heartbeat of a process, with these fields besides those that each has.
    fn hear(&mut self, program: &str, id: &str, fields: Value) {
        let mut beat = json!({
            "program": program, "id": id, "incarnation": id, "started_at": 0, "at": NOW, "every_ms": 2000, "stance": "open",
            "host": "h",
        });
        beat.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.roster.record(serde_json::from_value(beat).unwrap(), NOW);
    }

    fn lane(&mut self, name: &str, ready: u64, consumers: u64, rungs: &[(&str, u64)]) -> &mut LaneStatus {
        let rungs = rungs.iter().map(|(rung, n)| ((*rung).to_owned(), *n)).collect();
        let queue = QueueStatus { ready, consumers, ..QueueStatus::default() };
        let (shards, leftovers, missing) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let lane = LaneStatus { name: name.into(), queue, shards, leftovers, missing, retrying: 0, rungs };
        self.snapshot.lanes.push(lane);
        self.snapshot.lanes.last_mut().unwrap()
    }

    fn problems(&self) -> Vec<Problem> {
        diagnose(&Facts {
            now: NOW,
            operator: &self.operator,
            queue_problem: self.queue_problem,
            fleet_problem: self.fleet_problem,
            alarm: self.alarm,
            database_problem: self.database_problem,
            snapshot: Some(&self.snapshot),
            lanes: &self.lanes,
            roster: &self.roster,
            objective: Duration::from_secs(30),
            new_letters: self.new_letters,
            pauses: self.pauses.as_ref().map_err(|why| *why),
            differences: self.differences.as_deref().map_err(|why| *why),
            alarms_unseen: self.alarms_unseen,
        })
    }

    /// The problems as severity, code and line.
    fn lines(&self) -> Vec<String> {
        let line = |it: &Problem| format!("{} {} {}", it.severity, it.problem, it.line(NOW));
        self.problems().iter().map(line).collect()
    }
}

/// The state of a lane whose tasks usually end within a quarter of a second.
fn lane(running: u64, slots: u64, waiting: u64, stalled_seconds: f64, backlog_seconds: f64) -> LaneSample {
    let (backlog, backlog_seconds) = (running + waiting, Some(backlog_seconds));
    let load = Load { running, backlog, backlog_seconds, ..Load::default() };
    LaneSample { load, slots, stalled_seconds, ..LaneSample::default() }
}

fn counted() -> Value {
    json!({"kinds": {"reading.process": {"buckets": [0, 0, 0, 0, 0, 100]}}})
}

#[test]
fn a_fleet_without_problems_has_none_and_says_so() {
    let mut fleet = Fleet::new();
    fleet.lane("default", 7, 1, &[]);
    fleet.lanes.insert("default".into(), lane(4, 4, 7, 0.1, 0.2));
    fleet.hear("gateway", "g", json!({"spool": {"records": 0}}));
    fleet.hear("bridge", "b", json!({"bridge": {"connected": true}}));
    assert_eq!(fleet.problems(), []);
    assert_eq!((verdict(&[]), needs_attention(&[])), ("no problems".to_owned(), false));
    assert_eq!(text(&[], NOW), "no problems\n");
}

#[test]
fn what_is_not_heard_is_not_judged() {
    let mut fleet = Fleet::new();
    fleet.roster.expect("silent", NOW);
    fleet.lanes.insert("default".into(), lane(4, 4, 7, 3_600.0, 3_600.0));
    fleet.alarm = Some("low on disk");
    let lines = fleet.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(
        lines[0].starts_with("critical broker-alarm broker 127.0.0.1:5672: an alarm blocks"),
        "{lines:?}"
    );
    assert!(lines[0].contains("(low on disk)"), "{lines:?}");

    (fleet.alarm, fleet.fleet_problem) = (None, Some("no broker"));
    assert!(fleet.lines()[0].starts_with("critical no-heartbeats "), "{:?}", fleet.lines());
    fleet.queue_problem = Some("no broker");
    fleet.snapshot.missing = vec!["garenne.lane.default".into()];
    let lines = fleet.lines();
    assert_eq!(lines.len(), 1, "the last counts are not known to be true any more: {lines:#?}");
    assert!(
        lines[0].contains(
            "critical broker-unavailable broker 127.0.0.1:5672: the queues cannot be read: no broker"
        )
    );
}

#[test]
fn queues_are_judged_by_what_they_lack() {
    let mut fleet = Fleet::new();
    fleet.lane("fast", 421, 0, &[("1m", 3), ("1h", 5)]);
    fleet.lane("slow", 9, 0, &[]);
    fleet.hear("worker", "w", json!({"at": NOW, "lanes": {"slow": {"paused": true}}}));
    let shards = [(3, 2), (0, 0), (5, 0)].map(|(ready, consumers)| QueueStatus {
        ready,
        consumers,
        ..QueueStatus::default()
    });
    let keyed = fleet.lane("keyed", 17, 0, &[]);
    keyed.shards = ["s.0", "s.1", "s.2"].map(str::to_owned).into_iter().zip(shards).collect();
    keyed.leftovers = [("s.3".to_owned(), 9)].into();
    fleet.snapshot.missing = vec!["garenne.dead".into()];
    fleet.snapshot.unroutable.ready = 2;
    fleet.snapshot.dead.ready = 3;
    fleet.database_problem = Some("refused");
    assert_eq!(
        fleet.lines(),
        [
            "critical missing-queue missing queue: garenne.dead",
            "critical database-unavailable database: it does not answer: refused",
            "critical lane-without-worker lane fast: 421 tasks are waiting and no worker consumes them",
            "critical lane-without-worker s.2: 5 tasks are waiting and no worker consumes them",
            "critical lane-without-worker s.3: 9 tasks are waiting in a queue of a former shard",
            "warning unroutable 2 messages match no binding",
            "notice dead-letters 3 dead letters",
            "notice retries-far-ahead lane fast: tasks wait long for their next attempt: 5 in 1h",
            "notice paused lane slow: it is paused; by whom and since when is unknown: the audit log has no record of it",
        ]
    );
    fleet.new_letters = Some((2, NOW - 60_000));
    let lines = fleet.lines();
    assert!(
        lines.contains(&"warning dead-letters-growing 2 new dead letters in 60s, 3 in the queue".to_owned()),
        "{lines:#?}"
    );
    assert!(!lines.iter().any(|line| line.contains("notice dead-letters")), "{lines:#?}");
    assert_eq!(verdict(&fleet.problems()), "5 critical problems, 2 warnings");
}

#[test]
fn a_lane_whose_slots_are_full_and_end_nothing_stands_still() {
    let mut fleet = Fleet::new();
    fleet.hear("worker", "w", counted());
    fleet.lanes.insert("fast".into(), lane(4, 4, 1_200, 90.0, 3_600.0));
    let expected = "critical lane-stalled lane fast: nothing ends, 1,200 tasks wait, all 4 slots are busy; \
                    99 % of its tasks end within ";
    assert!(
        fleet.lines()[0].starts_with(expected) && fleet.lines()[0].ends_with("(for 90s)"),
        "{:?}",
        fleet.lines()
    );
    assert_eq!(fleet.problems().len(), 1, "that it is late too is no second problem");

    fleet.lanes.insert("fast".into(), lane(4, 4, 1_200, 3.0, 45.0));
    let late = "warning lane-late lane fast: 1,200 tasks wait, one that arrives now waits for 45s; the objective is 30s";
    assert_eq!(fleet.lines(), [late]);
    let oldest_seconds = Some(88.0);
    fleet.lanes.insert("fast".into(), LaneSample { oldest_seconds, ..lane(4, 4, 7, 3.0, 23.0) });
    let late =
        "warning lane-late lane fast: 7 tasks wait, the oldest one has waited for 88s; the objective is 30s";
    assert_eq!(fleet.lines(), [late]);
    for calm in [lane(4, 4, 0, 90.0, 90.0), lane(4, 4, 7, 3.0, 29.0), lane(0, 0, 7, 90.0, 90.0)] {
        fleet.lanes.insert("fast".into(), calm);
        assert_eq!(fleet.problems(), []);
    }
    let mut paused = lane(0, 4, 7, 90.0, 90.0);
    paused.load.paused = true;
    fleet.lanes.insert("fast".into(), paused);
    assert_eq!(fleet.problems(), []);
}

/// Nothing can end while results cannot be stored. More workers, or stopping tasks, would not help.
#[test]
fn a_lane_that_waits_for_a_sink_is_no_second_problem() {
    let mut fleet = Fleet::new();
    let mut fields = counted();
    fields["sinks"] = json!({"postgres": {"up": false, "trouble": "refused"}});
    fleet.hear("worker", "w", fields);
    for waiting in [lane(0, 4, 6, 90.0, 90.0), lane(1, 4, 6, 3.0, 90.0)] {
        fleet.lanes.insert("fast".into(), waiting);
        assert_eq!(
            fleet.lines(),
            ["critical sink-down sink postgres: 1 workers cannot store results: refused"]
        );
    }
    fleet.lanes.insert("fast".into(), lane(4, 4, 6, 90.0, 90.0));
    let lines = fleet.lines();
    assert!(lines.len() == 2 && lines[1].contains("all 4 slots are busy"), "{lines:#?}");
}

#[test]
fn before_a_task_has_ended_a_lane_may_take_its_time() {
    let mut fleet = Fleet::new();
    fleet.lanes.insert("fast".into(), lane(4, 4, 1, 599.0, 20.0));
    assert_eq!(fleet.problems(), []);
    fleet.lanes.insert("fast".into(), lane(4, 4, 1, 601.0, 20.0));
    assert_eq!(fleet.problems()[0].problem, LaneStalled);
}

#[test]
fn workers_and_their_tasks_are_judged() {
    let mut fleet = Fleet::new();
    fleet.roster.expect("gone", NOW);
    let task = |id: &str, seconds: f64, stopping: bool| json!({"id": id, "kind": "reading.process", "lane": "default", "seconds": seconds, "stopping": stopping});
    let mut fields = counted();
    fields["tasks"] =
        json!([task("old", 7_300.0, false), task("older", 7_400.0, false), task("young", 3.0, true)]);
    fields["sinks"] = json!({"postgres": {"up": false, "away_since": NOW - 5_000, "trouble": "sink postgres takes no results: sink postgres is unavailable: refused (since then)"}, "stdout": {"up": true}});
    fields["lanes"] = json!({"default": {"trouble": "the queue is missing"}});
    fields["unhandled"] = json!([{"lane": "default", "kind": "email.send", "tasks": 20, "since": NOW - 35_000,
                                  "waiting": [[NOW + 5_000, 20, 0]]}]);
    fields["paused"] = json!(["import-7"]);
    fields["paused_kinds"] = json!(["image.resize"]);
    fleet.hear("worker", "w", fields);
    let by = PausedBy { who: "anna (dashboard 192.0.2.7)".into(), at: NOW - 60_000 };
    fleet.pauses = Ok([(("group".to_owned(), "import-7".to_owned()), by)].into());
    assert_eq!(
        fleet.lines(),
        [
            "critical sink-down sink postgres: 1 workers cannot store results: refused (for 5.0s)",
            "critical lane-not-consumed lane default at worker w: the queue is missing",
            "critical kind-without-worker kind email.send: 20 tasks wait in lane default, and no running worker has a handler for them (for 35s)",
            "warning hung-tasks kind reading.process: 2 tasks in lane default run for much longer than usual, older for 2h",
            "warning silent-worker worker gone: it sends no heartbeats: it has crashed, hangs, or cannot reach the broker",
            "notice paused group import-7: paused by anna (dashboard 192.0.2.7) (for 60s)",
            "notice paused kind image.resize: it is paused; by whom and since when is unknown: the audit log has no record of it",
        ]
    );
}

/// A lane that is not consumed because of its handlers is no second problem.
#[test]
fn a_handler_that_is_not_ready_is_named_after_a_while_or_with_its_problem() {
    let mut fleet = Fleet::new();
    let since = |ago: i64, problem: &str| json!({"since": NOW - ago, "problem": problem});
    let not_ready = json!({"image.resize": since(20_000, ""), "image.crop": since(9_000, "")});
    fleet.hear("worker", "a", json!({"not_ready": not_ready}));
    fleet.hear(
        "worker",
        "b",
        json!({"not_ready": {"image.resize": since(30_000, ""), "pdf.*": since(1_000, "no license")}}),
    );
    let expected = [
        "critical handler-not-ready kind image.resize: its handler does not finish its start; no task of it runs in worker a and 1 more (for 30s)",
        "critical handler-not-ready kind pdf.*: no license; no task of it runs in worker b (for 1.0s)",
    ];
    assert_eq!(fleet.lines(), expected);
    fleet.lane("default", 5, 0, &[]);
    assert_eq!(fleet.lines(), expected);
}

#[test]
fn why_it_is_unknown_who_paused_something_is_said() {
    let mut fleet = Fleet::new();
    fleet.hear("worker", "w", json!({"paused": ["g"]}));
    fleet.pauses = Err("the broker denied access to \"garenne.audit\"");
    let expected = "notice paused group g: it is paused; by whom and since when is unknown: \
                    the broker denied access to \"garenne.audit\"";
    assert_eq!(fleet.lines(), [expected]);
    assert_eq!(fleet.problems()[0].since, None);
}

#[test]
fn a_worker_that_restarts_again_and_again_and_a_wrong_clock_are_named() {
    let mut fleet = Fleet::new();
    for n in 0..4_i64 {
        let (incarnation, started) = (format!("loop-{n}"), n * 10_000);
        let beat = |stance: &str, at: i64| {
            let beat = json!({"program": "worker", "id": "loop", "incarnation": incarnation, "started_at": started, "at": at,
                              "every_ms": 2000, "stance": stance});
            serde_json::from_value(beat).unwrap()
        };
        fleet.roster.record(beat("open", NOW - 40_000 + started), NOW - 40_000 + started);
        if n < 3 {
            fleet.roster.record(beat("stopped", NOW - 39_000 + started), NOW - 39_000 + started);
        }
    }
    fleet.roster.record(
        serde_json::from_value(
            json!({"program": "worker", "id": "late", "incarnation": "i", "started_at": 0,
            "at": NOW - 7_000, "every_ms": 2000, "stance": "open", "host": "plant"}),
        )
        .unwrap(),
        NOW,
    );
    let lines = fleet.lines();
    assert!(
        lines.contains(&"warning restart-loop worker loop: it started 4 times within 10 minutes".to_owned()),
        "{lines:#?}"
    );
    let skew = "warning clock-skew worker late: the clock of its host \"plant\" is 7.0s behind this one";
    assert!(lines.contains(&skew.to_owned()), "{lines:#?}");
}

#[test]
fn gateways_and_bridges_are_judged_by_their_spools_and_subscriptions() {
    let mut fleet = Fleet::new();
    fleet.hear(
        "gateway",
        "g",
        json!({"spool": {"records": 1_500, "oldest_at": NOW - 61_000, "set_aside": 2}}),
    );
    fleet.hear(
        "bridge",
        "b",
        json!({"bridge": {"broker": "mqtt:1883"}, "spool": {"records": 3, "oldest_at": NOW - 59_000}}),
    );
    assert_eq!(
        fleet.lines(),
        [
            "critical bridge-disconnected bridge b: it is not subscribed to the MQTT broker at mqtt:1883",
            "warning spool-waiting gateway g: 1,500 tasks wait in its spool (for 61s)",
            "warning spool-segments-aside gateway g: 2 segments of its spool were set aside",
        ]
    );
}

#[test]
fn every_problem_has_a_next_step_in_the_text() {
    let mut fleet = Fleet::new();
    fleet.lane("fast", 1, 0, &[]);
    let text = text(&fleet.problems(), NOW);
    let expected = "1 critical problem\ncritical  lane fast: 1 tasks are waiting and no worker consumes them\n          start a worker";
    assert!(text.starts_with(expected), "{text}");
}

/// `status` looks once. A slot that hangs must not stand for the durations of all tasks.
#[test]
fn a_console_that_looks_once_knows_how_long_tasks_take() {
    let mut fleet = Fleet::new();
    // The worker has counted before the console listened.
    fleet.roster = Roster::new(NOW - 1);
    fleet.lane("fast", 10, 1, &[]);
    let work = json!({
        "lanes": {"fast": {"slots": 4, "busy": 4, "open": true, "running_for": 600.3}},
        "tasks": [{"id": "t", "kind": "reading.process", "lane": "fast", "seconds": 600.0}],
        "kinds": {"reading.process": {"outcomes": {"success": 100}, "seconds": 20.0}},
    });
    fleet.hear("worker", "w", work);
    let lanes = crate::monitor::lanes(&fleet.operator, &fleet.roster, &fleet.snapshot, NOW);
    let wait = lanes["fast"].load.backlog_seconds.unwrap();
    assert!((0.5..1.5).contains(&wait), "{wait}: ten tasks of 200 ms in three slots");
    assert_eq!(lanes["fast"].load.hung, 1);
}

/// The mean since the start is not that of the tasks that run now.
#[test]
fn tasks_take_as_long_as_they_took_within_the_last_minutes() {
    let mut fleet = Fleet::new();
    fleet.lane("fast", 8, 1, &[]);
    let work = json!({
        "lanes": {"fast": {"slots": 4, "open": true}},
        "kinds": {"reading.process": {
            "outcomes": {"success": 1_000_010}, "seconds": 1_030.0, "recent": {"ended": 10, "seconds": 30.0},
        }},
    });
    let service_seconds = |fleet: &Fleet| {
        let lanes = crate::monitor::lanes(&fleet.operator, &fleet.roster, &fleet.snapshot, NOW);
        lanes["fast"].load.service_seconds
    };
    fleet.hear("worker", "w", work.clone());
    assert_eq!(service_seconds(&fleet), Some(3.0));
    // Nine of the last half minute are too few, ten are enough.
    for (latest, mean) in [(9, 3.0), (10, 0.5)] {
        let recent = json!({"ended": 10, "seconds": 30.0, "latest_ended": latest, "latest_seconds": 5.0});
        let mut work = work.clone();
        work["kinds"]["reading.process"]["recent"] = recent;
        fleet.hear("worker", "w", work);
        assert_eq!(service_seconds(&fleet), Some(mean));
    }
}

/// A console that looks once knows new dead letters from the workers, one that watches also those of others.
#[test]
fn dead_letters_grow_by_the_word_of_workers_or_of_the_queue() {
    let mut fleet = Fleet::new();
    fleet.snapshot.dead.ready = 3_040;
    let growing = |fleet: &Fleet| {
        fleet.lines().into_iter().find(|line| line.contains("dead letters")).unwrap_or_default()
    };
    assert_eq!(growing(&fleet), "notice dead-letters 3,040 dead letters");
    fleet.hear(
        "worker",
        "w",
        json!({"kinds": {"bench.fail": {"dead": {"rejected": 3_100}, "recent": {"dead": 3_000}}}}),
    );
    let of_worker = "warning dead-letters-growing 3,000 new dead letters in 5m, 3,040 in the queue";
    assert_eq!(growing(&fleet), of_worker);
    fleet.new_letters = Some((40, NOW - 60_000));
    assert_eq!(growing(&fleet), of_worker);
    fleet.new_letters = Some((3_040, NOW - 60_000));
    assert_eq!(
        growing(&fleet),
        "warning dead-letters-growing 3,040 new dead letters in 60s, 3,040 in the queue"
    );
}

/// What waits in a lane whose queue does not exist is not known.
#[test]
fn the_load_of_a_lane_without_its_queue_is_unknown() {
    let mut fleet = Fleet::new();
    fleet.lane("fast", 0, 0, &[]).missing = vec!["garenne.tasks.fast".into()];
    let lanes = crate::monitor::lanes(&fleet.operator, &fleet.roster, &fleet.snapshot, NOW);
    let problem = lanes["fast"].problem.as_deref();
    assert_eq!(problem, Some("what waits in lane fast is not known: garenne.tasks.fast is missing"));
    assert_eq!(lanes["fast"].load.backlog_seconds, None);
}

/// The number of workers follows from the same wait that all tools show.
#[test]
fn a_full_lane_in_which_nothing_ends_needs_a_worker_before_its_tasks_count_as_hung() {
    let mut fleet = Fleet::new();
    fleet.roster = Roster::new(NOW - 1);
    fleet.lane("fast", 10, 1, &[]);
    let work = json!({
        "lanes": {"fast": {"slots": 4, "busy": 4, "open": true, "running_for": 124.0}},
        "kinds": {"reading.process": {"outcomes": {"success": 100}, "seconds": 0.1}},
    });
    fleet.hear("worker", "w", work);
    let lanes = crate::monitor::lanes(&fleet.operator, &fleet.roster, &fleet.snapshot, NOW);
    let load = lanes["fast"].load;
    assert_eq!((load.hung, load.overdue), (0, 4));
    assert!(load.backlog_seconds > Some(30.0), "{load:?}");
    assert_eq!(scale::needed(&load, &scale::Goal::default()), 2);
}
