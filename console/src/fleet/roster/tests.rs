use garenne_protocol::heartbeat::KindBeat;

use super::*;

/// A heartbeat of worker `w` in incarnation `incarnation`, started at `started_at`, after `done` tasks.
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
    roster.members(Program::Worker, now).iter().map(|member| member.state).collect()
}

#[test]
fn a_process_is_silent_after_three_missed_heartbeats_and_then_removed() {
    let mut roster = Roster::new(0);
    roster.record(beat("i", 0, 0, 0), 1_000);
    assert_eq!(states(&roster, 7_000), [State::Open]);
    assert_eq!(states(&roster, 7_001), [State::Silent]);
    roster.forget(1_000 + FORGET_SILENT - 1);
    assert_eq!(states(&roster, 7_001), [State::Silent]);
    roster.forget(1_000 + FORGET_SILENT);
    assert!(states(&roster, 7_001).is_empty());
}

#[test]
fn a_process_is_not_silent_while_the_broker_delivers_nothing() {
    let mut roster = Roster::new(0);
    roster.begin_hearing(0);
    roster.record(beat("i", 0, 0, 0), 1_000);
    roster.hear_broker(6_000);
    assert_eq!(states(&roster, 60_000), [State::Open], "it may have sent heartbeats since");
    assert_eq!(roster.broker_silence(60_000), 54_000);
    roster.hear_broker(7_001);
    assert_eq!(states(&roster, 60_000), [State::Silent], "its heartbeat would have come first");
    // A new connection, or the end of an alarm.
    roster.begin_hearing(61_000);
    assert_eq!(states(&roster, 61_000), [State::Open], "it had no time to be heard");
    roster.hear_broker(67_001);
    assert_eq!(states(&roster, 67_001), [State::Silent]);
}

#[test]
fn stopped_is_final_for_an_incarnation() {
    let mut roster = Roster::new(0);
    let mut last = beat("i", 0, 5, 0);
    last.stance = Stance::Stopped;
    roster.record(last, 10);
    roster.record(beat("i", 0, 4, 0), 11);
    assert_eq!(states(&roster, 20_000), [State::Stopped]);
    roster.record(beat("j", 7, 8, 0), 12);
    assert_eq!(states(&roster, 12), [State::Open]);
    roster.record(beat("i", 0, 9, 0), 20_000);
    assert!(roster.has_heard("w", "j"), "a late heartbeat of an earlier incarnation");
    roster.record(beat("i", 0, 10, 0), 12 + MAX_LATE);
    assert!(roster.has_heard("w", "i"), "it runs, so the start of the other one was forged");
}

/// A user of another worker can publish heartbeats in a worker's name.
/// It may end before the run before it is silent, and so is never recorded.
#[test]
fn another_run_is_told_before_it_is_recorded() {
    let mut roster = Roster::new(0);
    assert!(!roster.is_other_run(&beat("i", 0, 0, 0)), "the first one");
    roster.record(beat("i", 0, 0, 0), 0);
    assert!(!roster.is_other_run(&beat("i", 0, 1, 0)) && roster.is_other_run(&beat("j", 1, 1, 0)));
    roster.record(beat("j", 1, 1, 0), 1);
    assert!(roster.is_other_run(&beat("j", 1, 2, 0)), "it was not recorded");
}

#[test]
fn a_true_heartbeat_replaces_a_forged_one() {
    let forge = |stance: Stance, at: i64, now: i64| {
        let mut roster = Roster::new(0);
        roster.record(beat("i", 0, 1_000, 1), 1_000);
        roster.record(Heartbeat { stance, every_ms: u64::MAX, ..beat("i", 0, at, 1) }, now);
        roster
    };
    let mut stopped = forge(Stance::Stopped, i64::MAX, 1_500);
    stopped.record(beat("i", 0, 3_000, 2), 3_000);
    assert_eq!(states(&stopped, 3_000), [State::Open]);
    let mut stopped = forge(Stance::Stopped, i64::MAX, 3_600_000);
    stopped.record(beat("i", 0, 2_000, 2), 3_601_999);
    assert_eq!(states(&stopped, 3_601_999), [State::Stopped]);
    stopped.record(beat("i", 0, 4_000, 2), 3_602_000);
    assert_eq!(states(&stopped, 3_602_000), [State::Open], "the worker's clock is an hour behind");
    // The worker's clock is an hour behind.
    let mut ahead = forge(Stance::Quiet, i64::MAX, 3_600_000);
    ahead.record(beat("i", 0, 3_000, 2), 3_602_000);
    assert_eq!(states(&ahead, 3_602_000), [State::Open]);
}

#[test]
fn an_expected_worker_without_a_heartbeat_is_silent() {
    let mut roster = Roster::new(0);
    roster.expect("w", 100);
    assert_eq!(states(&roster, 100), [State::Silent]);
    roster.record(beat("i", 0, 0, 0), 200);
    roster.expect("w", 300);
    assert_eq!(states(&roster, 300), [State::Open]);
}

#[test]
fn totals_are_the_differences_between_heartbeats() {
    let done = |roster: &Roster| roster.totals().kinds.get("k").map_or(0, |kind| kind.done);
    let mut roster = Roster::new(1_000);
    roster.record(beat("old", 10, 1_500, 700), 1_500);
    assert_eq!(done(&roster), 0, "done before the roster was created");
    roster.record(beat("old", 10, 1_600, 705), 1_600);
    roster.record(beat("old", 10, 1_550, 703), 1_601);
    assert_eq!(done(&roster), 5);
    roster.record(beat("new", 1_650, 1_700, 2), 1_700);
    assert_eq!(done(&roster), 5, "the earlier one was heard just now");
    roster.record(beat("new", 1_650, 9_000, 3), 9_000);
    assert_eq!(done(&roster), 8, "a new incarnation counts from zero");
}

/// Heartbeats of other processes: `count` of them, from number `from` on.
fn forged(roster: &mut Roster, program: Program, from: usize, count: usize, now: i64) {
    for n in from..from + count {
        let id = format!("forged-{n}");
        roster.record(Heartbeat { program, id, ..beat("i", 0, now, 0) }, now);
    }
}

fn ids(roster: &Roster, program: Program, now: i64) -> Vec<String> {
    roster.members(program, now).iter().map(|member| member.process.id().to_owned()).collect()
}

#[test]
fn processes_of_one_program_take_no_place_of_another() {
    let mut roster = Roster::new(0);
    forged(&mut roster, Program::Gateway, 0, 5_200, 0);
    forged(&mut roster, Program::Bridge, 0, 5_200, 0);
    roster.record(beat("i", 0, 0, 0), 0);
    assert_eq!(states(&roster, 0), [State::Open]);
    assert_eq!(ids(&roster, Program::Gateway, 0).len(), MAX_PRODUCERS);
    assert_eq!(roster.take_refused(), 2 * (5_200 - MAX_PRODUCERS as u64));
}

#[test]
fn a_process_that_is_heard_stays_and_a_silent_one_leaves_for_another() {
    let mut roster = Roster::new(0);
    let real = |at: i64| Heartbeat { program: Program::Gateway, id: "real".into(), ..beat("i", 0, at, 0) };
    roster.record(real(0), 0);
    for second in 0..20 {
        roster.record(real(second * 1_000), second * 1_000);
        forged(&mut roster, Program::Gateway, 200 * second as usize, 200, second * 1_000);
    }
    let shown = ids(&roster, Program::Gateway, 60_000);
    assert_eq!((shown.len(), shown.contains(&"real".to_owned())), (MAX_PRODUCERS, true));
    let newcomer = Heartbeat { id: "newcomer".into(), ..real(70_000) };
    roster.record(newcomer, 70_000);
    assert!(ids(&roster, Program::Gateway, 70_000).contains(&"newcomer".to_owned()));
}

#[test]
fn a_worker_counts_once_its_control_queue_is_found() {
    let mut roster = Roster::checking(0);
    forged(&mut roster, Program::Worker, 0, 5_200, 1_000);
    assert_eq!(roster.unconfirmed().len(), MAX_UNCONFIRMED);
    roster.unconfirmed().iter().for_each(|worker| roster.confirm(worker, false));
    assert!(roster.unconfirmed().is_empty());

    roster.record(beat("i", 500, 1_000, 3), 1_000);
    assert_eq!(states(&roster, 1_000), [State::Unconfirmed]);
    assert!(roster.totals().kinds.is_empty());
    roster.confirm("w", true);
    assert_eq!(states(&roster, 1_000), [State::Open]);
    roster.record(beat("i", 500, 2_000, 5), 2_000);
    assert_eq!(roster.totals().kinds["k"].done, 5, "it started after the roster");
    // It is heard: no heartbeat of another incarnation takes its place, and no later time of a forged one.
    roster.record(beat("forged", 2_000, i64::MAX, 0), 2_001);
    roster.record(beat("i", 500, 2_100, 6), 4_000);
    assert_eq!(roster.totals().kinds["k"].done, 6);
    // Its successor is checked again.
    roster.record(beat("j", 9_000, 20_000, 1), 20_000);
    assert_eq!(states(&roster, 20_000), [State::Unconfirmed]);
}

#[test]
fn a_listed_worker_has_a_place_however_many_are_forged() {
    let mut roster = Roster::checking(0);
    roster.confirm_listed(BTreeSet::from(["w".to_owned()]), 0);
    for second in 0..20 {
        forged(&mut roster, Program::Worker, 0, 200, second * 1_000);
    }
    roster.record(beat("i", 0, 60_000, 0), 60_000);
    let open = roster.members(Program::Worker, 60_000).into_iter().filter(|it| it.state == State::Open);
    assert_eq!(open.map(|it| it.process.id().to_owned()).collect::<Vec<_>>(), ["w"]);
    // Those that the list does not name leave.
    roster.confirm_listed(BTreeSet::from(["w".to_owned()]), 60_000);
    assert_eq!(ids(&roster, Program::Worker, 60_000), ["w"]);
}

#[test]
fn a_member_has_the_fields_of_its_heartbeat_or_an_id_only() {
    let mut roster = Roster::new(0);
    roster.record(beat("i", 0, 0, 0), 0);
    roster.expect("x", 0);
    let json = |member| serde_json::to_string(&member).unwrap();
    let members: Vec<_> = roster.members(Program::Worker, 5).into_iter().map(json).collect();
    assert!(members[1].starts_with(r#"{"state":"open","heard_ms_ago":5,"program":"worker","id":"w","#));
    assert_eq!(members[1].matches(r#""id""#).count(), 1, "{}", members[1]);
    assert_eq!(members[0], r#"{"state":"silent","heard_ms_ago":null,"id":"x"}"#);
}
