//! What operators have paused.

use std::collections::BTreeSet;

use super::{
    Facts,
    problem::{Code::Paused, Problem, Severity::Notice},
};
use crate::fleet::{MemberView, paused};

/// What is paused: `lane`, `kind` or `group`, and the name. If the workers cannot be heard, the audit log tells of it too.
pub(super) fn objects(facts: &Facts<'_>, workers: &[MemberView]) -> BTreeSet<(String, String)> {
    let mut objects = paused(workers);
    if !facts.is_heard()
        && facts.queue_problem.is_none()
        && let Ok(records) = facts.pauses
    {
        objects.extend(records.keys().cloned());
    }
    objects
}

/// One problem for each of them.
pub(super) fn problems(facts: &Facts<'_>, objects: BTreeSet<(String, String)>) -> Vec<Problem> {
    let problem = |key: (String, String)| {
        let (noun, name) = &key;
        let problem = Problem::new(Paused, Notice, format!("{noun} {name}"));
        let problem = problem.next(format!("`garenne {noun} resume {name}` ends that"));
        let unknown = |why: &str| format!("it is paused; by whom and since when is unknown: {why}");
        match facts.pauses.map(|records| records.get(&key)) {
            Ok(Some(by)) => problem.since(by.at).detail(format!("paused by {}", by.who)),
            Ok(None) => problem.detail(unknown("the audit log has no record of it")),
            Err(why) => problem.detail(unknown(why)),
        }
    };
    objects.into_iter().map(problem).collect()
}
