//! What operators have paused.

use super::{
    Facts,
    problem::{Code::Paused, Problem, Severity::Notice},
};
use crate::fleet::{MemberView, paused};

pub(super) fn problems(facts: &Facts<'_>, workers: &[MemberView]) -> Vec<Problem> {
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
    paused(workers).into_iter().map(problem).collect()
}
