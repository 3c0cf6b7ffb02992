//! Whether a worker knows a task, a group, a lane or a kind by its name. Directives are kept for workers and tasks that come later, so
//! a misspelt name is accepted; these remarks are what tells the operator.

use garenne_protocol::{heartbeat::Heartbeat, task::matches_binding};

use super::roster::MemberView;

/// A remark on a task that no worker runs, as far as heartbeats tell.
pub fn unseen_task(workers: &[MemberView], id: &str) -> Option<String> {
    let beats = || heard(workers);
    if beats().any(|beat| beat.tasks.iter().any(|task| task.id == id)) {
        return None;
    }
    let (running, listed) =
        beats().fold((0, 0), |sum, beat| (sum.0 + beat.running, sum.1 + beat.tasks.len()));
    let count = beats().count();
    let scope = match running > listed {
        true => format!("is among the {listed} longest running tasks of {running}"),
        false => "is running".to_owned(),
    };
    Some(format!(
        "no task {id:?} {scope} on the {count} workers that are heard: it waits in a queue, has ended, or never existed; \
         the directive is kept"
    ))
}

/// A remark on a group of which no worker holds a task or a pause.
pub fn unseen_group(workers: &[MemberView], group: &str) -> Option<String> {
    let is_known = |beat: &Heartbeat| {
        beat.groups.contains_key(group)
            || beat.paused.iter().any(|paused| paused == group)
            || beat.tasks.iter().any(|task| task.group.as_deref() == Some(group))
    };
    let unseen = format!("holds a task of group {group:?} or has paused it");
    unless_known(workers, is_known, &unseen, "tasks that arrive")
}

/// A remark on a lane that no worker consumes.
pub fn unseen_lane(workers: &[MemberView], lane: &str) -> Option<String> {
    let is_known = |beat: &Heartbeat| beat.lanes.contains_key(lane);
    unless_known(workers, is_known, &format!("consumes lane {lane:?}"), "workers that start")
}

/// A remark on a kind of which no worker has run a task, and which none has paused.
pub fn unseen_kind(workers: &[MemberView], kind: &str) -> Option<String> {
    let is_known = |beat: &Heartbeat| {
        beat.kinds.keys().any(|known| matches_binding(known, kind) || matches_binding(kind, known))
            || beat.paused_kinds.iter().any(|paused| paused == kind)
            || beat.tasks.iter().any(|task| matches_binding(kind, &task.kind))
    };
    let unseen = format!("has run a task of kind {kind:?} or has paused it");
    unless_known(workers, is_known, &unseen, "tasks that arrive")
}

/// The remark that no worker does what `unseen` says, unless one knows the name.
fn unless_known(
    workers: &[MemberView],
    is_known: impl Fn(&Heartbeat) -> bool,
    unseen: &str,
    kept_for: &str,
) -> Option<String> {
    let count = heard(workers).count();
    (!heard(workers).any(is_known)).then(|| {
        format!(
            "none of the {count} workers that are heard {unseen}: check the name; the directive is kept for {kept_for}"
        )
    })
}

fn heard(workers: &[MemberView]) -> impl Iterator<Item = &Heartbeat> {
    workers.iter().filter_map(MemberView::heard).map(|(beat, _)| beat)
}

#[cfg(test)]
mod tests {
    use garenne_protocol::heartbeat::Program;

    use super::{super::roster::Roster, *};

    fn fleet() -> Vec<MemberView> {
        let mut roster = Roster::new(0);
        let beat = serde_json::from_value(serde_json::json!({
            "program": "worker", "id": "w", "incarnation": "i", "started_at": 0, "at": 0, "every_ms": 1_000,
            "stance": "open", "running": 40, "paused": ["paused"], "groups": {"waiting": {"queued": 3}},
            "lanes": {"fast": {}}, "paused_kinds": ["paused.kind"], "kinds": {"run.kind": {"started": 1}},
            "tasks": [{"id": "t-1", "kind": "k", "lane": "fast", "group": "running"}],
        }));
        roster.record(beat.unwrap(), 0);
        roster.expect("never-heard", 0);
        roster.members(Program::Worker, 0)
    }

    #[test]
    fn a_group_is_known_if_a_worker_runs_holds_or_has_paused_it() {
        for known in ["paused", "waiting", "running"] {
            assert_eq!(unseen_group(&fleet(), known), None, "{known}");
        }
        assert_eq!(
            unseen_group(&fleet(), "wating").unwrap(),
            "none of the 1 workers that are heard holds a task of group \"wating\" or has paused it: check the name; \
             the directive is kept for tasks that arrive"
        );
    }

    #[test]
    fn a_lane_is_known_if_a_worker_consumes_it() {
        assert_eq!(unseen_lane(&fleet(), "fast"), None);
        assert_eq!(
            unseen_lane(&fleet(), "fats").unwrap(),
            "none of the 1 workers that are heard consumes lane \"fats\": check the name; the directive is kept for \
             workers that start"
        );
    }

    #[test]
    fn a_kind_is_known_if_a_worker_has_run_or_paused_it() {
        for known in ["paused.kind", "run.kind", "k"] {
            assert_eq!(unseen_kind(&fleet(), known), None, "{known}");
        }
        assert_eq!(
            unseen_kind(&fleet(), "run.knid").unwrap(),
            "none of the 1 workers that are heard has run a task of kind \"run.knid\" or has paused it: check the \
             name; the directive is kept for tasks that arrive"
        );
    }

    #[test]
    fn a_task_is_known_if_a_worker_lists_it() {
        assert_eq!(unseen_task(&fleet(), "t-1"), None);
        let remark = unseen_task(&fleet(), "t-2").unwrap();
        let expected =
            "no task \"t-2\" is among the 1 longest running tasks of 40 on the 1 workers that are heard";
        assert!(remark.starts_with(expected), "{remark}");
        assert!(unseen_task(&[], "t-2").unwrap().starts_with("no task \"t-2\" is running on the 0 workers"));
    }
}
