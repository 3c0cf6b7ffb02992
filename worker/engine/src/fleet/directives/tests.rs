use std::time::UNIX_EPOCH;

use garenne_protocol::task::{ContentType, Kind, NewTask, TaskId};

use super::*;

impl Directives {
    /// The number of entries.
    fn len(&self) -> usize {
        let DirectiveState { task_stops, group_stops, group_pauses, lane_pauses, kind_pauses, .. } =
            &*self.read();
        [task_stops, group_stops, group_pauses, lane_pauses, kind_pauses].iter().map(|it| it.len()).sum()
    }
}

fn task(id: &str, group: Option<&str>, published_s: u64) -> Envelope {
    let mut task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
    task.id = TaskId::parse(id).unwrap();
    task.group = group.map(str::to_owned);
    let now = UNIX_EPOCH + Duration::from_secs(published_s);
    Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap()
}

fn stopped(directives: &Directives, task: &Envelope) -> bool {
    directives.effect_on(task, None, UNIX_EPOCH + Duration::from_secs(1000)) == Some(DirectiveEffect::Stopped)
}

#[test]
fn a_stop_covers_a_task_by_id_and_a_group_up_to_the_directive() {
    let stops = Directives::default();
    let directives = [
        Directive::StopTask { task: "a".into(), at: 0 },
        Directive::StopGroup { group: "g".into(), at: 100_000 },
    ];
    assert!(directives.iter().all(|directive| stops.apply(directive)));
    assert!(
        !directives.iter().any(|directive| stops.apply(directive)),
        "the same directive again changes nothing"
    );
    assert!(stopped(&stops, &task("a", None, 500)));
    assert!(!stopped(&stops, &task("b", None, 500)));
    assert!(stopped(&stops, &task("b", Some("g"), 100)));
    assert!(!stopped(&stops, &task("b", Some("g"), 101)));
    assert!(!stopped(&stops, &task("b", Some("other"), 100)));
    let undated = Envelope { timestamp: None, published_at: None, ..task("b", Some("g"), 500) };
    assert!(stopped(&stops, &undated), "a task without a publish time");
}

#[test]
fn a_group_stop_compares_milliseconds_if_the_task_has_them_and_seconds_otherwise() {
    let stops = Directives::default();
    assert!(stops.apply(&Directive::StopGroup { group: "g".into(), at: 100_500 }));
    let ours = |ms: i64| Envelope { published_at: Some(ms), ..task("b", Some("g"), 100) };
    assert!(stopped(&stops, &ours(100_499)));
    assert!(stopped(&stops, &ours(100_500)));
    assert!(!stopped(&stops, &ours(100_501)), "published in the same second, but after the directive");
    let foreign = Envelope { published_at: None, ..task("b", Some("g"), 100) };
    assert!(stopped(&stops, &foreign), "its second started before the directive");
    let nanoseconds = Envelope { timestamp: Some(u64::MAX), ..foreign };
    assert!(!stopped(&stops, &nanoseconds), "no overflow");
}

#[test]
fn directives_expire_with_the_records_of_the_stream() {
    let directives = Directives::default();
    let kept = i64::try_from(DIRECTIVES_KEPT.as_millis()).unwrap();
    let at = |ms: i64| UNIX_EPOCH + Duration::from_millis(ms.unsigned_abs());
    for n in 0..100 {
        let name = format!("n{n}");
        directives.apply(&Directive::StopTask { task: name.clone(), at: 1000 });
        directives.apply(&Directive::StopGroup { group: name.clone(), at: 2000 });
        directives.apply(&Directive::PauseGroup { pause: name, at: 3000 });
    }
    directives.remove_expired(at(1000 + kept));
    assert_eq!(directives.len(), 300);
    directives.remove_expired(at(1001 + kept));
    assert_eq!(directives.len(), 200);
    directives.remove_expired(at(2001 + kept));
    assert_eq!((directives.len(), directives.paused_groups().len()), (100, 100));
    directives.remove_expired(at(3000 + kept));
    assert_eq!(directives.paused_groups().len(), 100);
    directives.remove_expired(at(3001 + kept));
    assert_eq!((directives.len(), directives.paused_groups().len()), (0, 0));
}

#[test]
fn a_resume_outlasts_an_older_pause_that_arrives_late() {
    let directives = Directives::default();
    let kept = u64::try_from(RESUME_KEPT.as_millis()).unwrap();
    directives.apply(&Directive::PauseGroup { pause: "g".into(), at: 1000 });
    directives.apply(&Directive::ResumeGroup { resume: "g".into(), at: 5000 });
    directives.apply(&Directive::PauseGroup { pause: "paused".into(), at: 5000 });
    directives.remove_expired(UNIX_EPOCH + Duration::from_millis(5000 + kept));
    assert!(
        !directives.apply(&Directive::PauseGroup { pause: "g".into(), at: 4000 }),
        "older than the resume directive"
    );
    directives.remove_expired(UNIX_EPOCH + Duration::from_millis(5001 + kept));
    assert_eq!((directives.len(), directives.paused_groups()), (1, vec!["paused".to_owned()]));
}

#[test]
fn a_pause_with_the_smallest_time_does_not_overflow() {
    let directives = Directives::default();
    directives.apply(&Directive::PauseGroup { pause: "g".into(), at: i64::MIN + 1 });
    let effect = directives.effect_on(&task("a", Some("g"), 1), None, UNIX_EPOCH + Duration::from_secs(9));
    assert_eq!(effect, Some(DirectiveEffect::Deferred(MAX_DEFERRAL)));
    directives.remove_expired(UNIX_EPOCH);
}

#[test]
fn a_replay_overrules_earlier_stops() {
    let stops = Directives::default();
    let directive = |at| Directive::StopTask { task: "a".into(), at };
    let group = |at| Directive::StopGroup { group: "g".into(), at };
    let replayed =
        |at| Envelope { replayed_at: Some(at), ..task("a", Some("g"), u64::try_from(at).unwrap() / 1000) };
    assert!(stops.apply(&directive(5000)) && stops.apply(&group(7000)));
    assert!(stopped(&stops, &Envelope { group: None, ..replayed(5000) }), "replayed at the time of the stop");
    assert!(!stopped(&stops, &Envelope { group: None, ..replayed(5001) }));
    assert!(stopped(&stops, &replayed(5001)), "its group was stopped after the replay");
    assert!(
        !stopped(&stops, &Envelope { timestamp: Some(1), ..replayed(7001) }),
        "the publish time does not matter after a replay"
    );
    assert!(stops.apply(&directive(9000)), "the same task is stopped again");
    assert!(stopped(&stops, &replayed(8000)));
    assert!(!stops.apply(&directive(8500)), "an older directive changes nothing");
}

#[test]
fn a_task_of_a_paused_group_is_deferred_by_the_duration_of_the_pause() {
    let directives = Directives::default();
    let pause = |at| Directive::PauseGroup { pause: "g".into(), at };
    let resume = |at| Directive::ResumeGroup { resume: "g".into(), at };
    let effect = |group, now_ms| {
        directives.effect_on(&task("a", group, 1), None, UNIX_EPOCH + Duration::from_millis(now_ms))
    };
    assert!(directives.apply(&pause(5000)));
    assert_eq!(directives.paused_groups(), ["g"]);
    assert_eq!(effect(Some("g"), 5000), Some(DirectiveEffect::Deferred(Duration::ZERO)));
    assert_eq!(effect(Some("g"), 12_500), Some(DirectiveEffect::Deferred(Duration::from_millis(7500))));
    assert_eq!(effect(Some("g"), 9_000_000), Some(DirectiveEffect::Deferred(MAX_DEFERRAL)));
    assert_eq!(effect(Some("g"), 4000), Some(DirectiveEffect::Deferred(Duration::ZERO)), "clocks may differ");
    assert_eq!((effect(Some("other"), 6000), effect(None, 6000)), (None, None));
    assert!(directives.apply(&resume(8000)));
    assert!(!directives.apply(&pause(5000)), "an older pause changes nothing");
    assert_eq!((effect(Some("g"), 9000), directives.paused_groups().len()), (None, 0));
    assert!(
        directives.apply(&Directive::StopGroup { group: "g".into(), at: 9000 })
            && directives.apply(&pause(9000))
    );
    assert_eq!(
        effect(Some("g"), 9000),
        Some(DirectiveEffect::Stopped),
        "a stop takes precedence over a pause"
    );
}

const LANE: Option<&str> = Some("fast");

#[test]
fn a_task_of_a_paused_lane_goes_back_to_its_queue() {
    let directives = Directives::default();
    let pause = |at| Directive::PauseLane { pause_lane: "fast".into(), at };
    let effect = |id, lane| directives.effect_on(&task(id, None, 1), lane, UNIX_EPOCH);
    assert!(directives.apply(&pause(5000)) && directives.is_lane_paused("fast"));
    assert_eq!(effect("a", LANE), Some(DirectiveEffect::LanePaused));
    assert_eq!((effect("a", Some("slow")), effect("a", None)), (None, None));
    assert!(directives.apply(&Directive::StopTask { task: "a".into(), at: 0 }));
    assert_eq!(effect("a", LANE), Some(DirectiveEffect::Stopped), "a stop takes precedence over a pause");
    assert!(directives.apply(&Directive::ResumeLane { resume_lane: "fast".into(), at: 6000 }));
    assert!(!directives.apply(&pause(5500)), "an older pause changes nothing");
    assert_eq!((effect("b", LANE), directives.is_lane_paused("fast")), (None, false));
}

#[test]
fn a_task_of_a_paused_kind_is_deferred_like_one_of_a_paused_group() {
    let directives = Directives::default();
    let now = UNIX_EPOCH + Duration::from_secs(10);
    let effect = |group| directives.effect_on(&task("a", group, 1), LANE, now);
    assert!(directives.apply(&Directive::PauseKind { pause_kind: "k".into(), at: 8000 }));
    assert!(directives.apply(&Directive::PauseKind { pause_kind: "other".into(), at: 1000 }));
    assert_eq!(
        (directives.paused_kinds(), directives.is_kind_paused("k")),
        (vec!["k".into(), "other".into()], true)
    );
    assert_eq!(effect(None), Some(DirectiveEffect::Deferred(Duration::from_secs(2))));
    assert!(directives.apply(&Directive::PauseGroup { pause: "g".into(), at: 3000 }));
    let longest = Some(DirectiveEffect::Deferred(Duration::from_secs(7)));
    assert_eq!(effect(Some("g")), longest, "the longer pause counts");
    assert!(directives.apply(&Directive::ResumeKind { resume_kind: "k".into(), at: 9000 }));
    assert_eq!((effect(None), effect(Some("g"))), (None, longest));
    assert!(directives.apply(&Directive::PauseLane { pause_lane: "fast".into(), at: 9000 }));
    assert_eq!(effect(Some("g")), Some(DirectiveEffect::LanePaused), "no copy while the lane is paused");
}

#[test]
fn pauses_of_lanes_and_kinds_expire_and_changes_of_lanes_are_told() {
    let directives = Directives::default();
    let mut changed = directives.lane_pauses_changed();
    directives.apply(&Directive::PauseKind { pause_kind: "k".into(), at: 1000 });
    assert!(!changed.has_changed().unwrap());
    directives.apply(&Directive::PauseLane { pause_lane: "fast".into(), at: 1000 });
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    directives.remove_expired(UNIX_EPOCH + DIRECTIVES_KEPT + Duration::from_millis(1001));
    assert!(changed.has_changed().unwrap(), "a pause that expired ends");
    assert_eq!(
        (directives.len(), directives.is_lane_paused("fast"), directives.is_kind_paused("k")),
        (0, false, false)
    );
}

#[test]
fn a_paused_pattern_pauses_the_kinds_that_match_it() {
    let directives = Directives::default();
    directives.apply(&Directive::PauseKind { pause_kind: "image.*".into(), at: 1000 });
    let paused = |directives: &Directives| {
        ["image.resize", "image", "image.a.b", "mail"].map(|kind| directives.is_kind_paused(kind))
    };
    assert_eq!(paused(&directives), [true, false, false, false]);
    let task = Envelope { kind: Kind::parse("image.resize").unwrap(), ..task("a", None, 1) };
    let now = UNIX_EPOCH + Duration::from_secs(3);
    let deferred = Some(DirectiveEffect::Deferred(Duration::from_secs(2)));
    assert_eq!(directives.effect_on(&task, None, now), deferred);
    directives.apply(&Directive::ResumeKind { resume_kind: "image.*".into(), at: 2000 });
    assert_eq!((paused(&directives), directives.effect_on(&task, None, now)), ([false; 4], None));
}
