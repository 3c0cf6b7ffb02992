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
fn stopped_is_final_for_an_incarnation() {
    let mut roster = Roster::new(0);
    let mut last = beat("i", 0, 5, 0);
    last.stance = Stance::Stopped;
    roster.record(last, 10);
    roster.record(beat("i", 0, 6, 0), 11);
    assert_eq!(states(&roster, 20_000), [State::Stopped]);
    roster.record(beat("j", 7, 8, 0), 12);
    assert_eq!(states(&roster, 12), [State::Open]);
    roster.record(beat("i", 0, 9, 0), 13);
    assert!(roster.has_heard("w", "j"), "a late heartbeat of an earlier incarnation");
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
    roster.record(beat("new", 1_650, 1_700, 3), 1_700);
    assert_eq!(done(&roster), 8, "a new incarnation counts from zero");
}

#[test]
fn the_number_of_members_is_limited() {
    let mut roster = Roster::new(0);
    for n in 0..MAX_MEMBERS + 10 {
        roster.record(Heartbeat { id: n.to_string(), ..beat("i", 0, 0, 0) }, 0);
    }
    assert_eq!(states(&roster, 0).len(), MAX_MEMBERS);
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
