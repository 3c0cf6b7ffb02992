//! The verdict on each task.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::Arc,
};

use serde::Serialize;

use super::{Account, Expected};

/// The fate of a task that was acknowledged to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It took effect once, and may have been executed several times.
    Once,
    /// It was executed. Effects were not counted.
    Executed,
    /// It is in the dead-letter queue and took no effect.
    Dead,
    /// It took effect more than once.
    Doubled,
    /// It took no effect, or was not executed if effects were not counted, and is no dead letter.
    Lost,
}

/// The verdict on one task.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding<'a> {
    #[serde(flatten)]
    task: &'a Expected,
    pub(crate) verdict: Verdict,
    /// How often it took effect; nothing if that was not counted.
    pub(crate) effects: Option<u64>,
    /// How often it was executed.
    pub(crate) executions: usize,
    workers: Vec<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead: Option<&'a str>,
}

/// The number of tasks by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Totals {
    /// Distinct tasks acknowledged to their senders.
    pub(crate) sent: u64,
    /// Acknowledgements of a task that had been acknowledged before: the sender repeated it.
    pub(crate) repeated: u64,
    /// Executed at least once.
    pub(crate) executed: u64,
    /// Took effect once; nothing if effects were not counted.
    pub(crate) once: Option<u64>,
    /// Took no effect, or were not executed if effects were not counted, and are no dead letters.
    pub(crate) lost: u64,
    /// Took effect more than once; nothing if effects were not counted.
    pub(crate) doubled: Option<u64>,
    /// In the dead-letter queue, without an effect.
    pub(crate) dead: u64,
    /// Executed more than once.
    pub(crate) rerun: u64,
}

/// The verdict on every acknowledged task.
#[derive(Clone, Debug)]
pub(crate) struct Verdicts<'a> {
    /// One finding per distinct task, in the order of acknowledgement.
    pub(crate) findings: Vec<Finding<'a>>,
    pub(crate) totals: Totals,
}

impl Totals {
    /// Whether no task was lost, and no effect doubled if effects were counted.
    pub(crate) fn kept(&self) -> bool {
        self.lost == 0 && self.doubled.is_none_or(|doubled| doubled == 0)
    }
}

impl<'a> Verdicts<'a> {
    /// Judges every acknowledged task by the evidence.
    pub(crate) fn of(account: &'a Account) -> Self {
        let sent = account.expected();
        let mut seen = BTreeSet::new();
        let mut totals = Totals::default();
        let (mut once, mut doubled) = (0, 0);
        let mut findings = Vec::with_capacity(sent.len());
        for expected in sent {
            let id = expected.id.as_str();
            if !seen.insert(id) {
                totals.repeated += 1;
                continue;
            }
            let finding = judge(expected, account);
            totals.sent += 1;
            totals.rerun += u64::from(finding.executions > 1);
            totals.executed += u64::from(finding.executions > 0);
            match finding.verdict {
                Verdict::Once => once += 1,
                Verdict::Executed => {}
                Verdict::Dead => totals.dead += 1,
                Verdict::Doubled => doubled += 1,
                Verdict::Lost => totals.lost += 1,
            }
            findings.push(finding);
        }
        (totals.once, totals.doubled) = match account.has_effects() {
            true => (Some(once), Some(doubled)),
            false => (None, None),
        };
        Self { findings, totals }
    }

    /// The number of tasks by their number of executions.
    pub(crate) fn by_executions(&self) -> BTreeMap<usize, u64> {
        let mut executions = BTreeMap::new();
        for finding in &self.findings {
            *executions.entry(finding.executions).or_default() += 1;
        }
        executions
    }

    /// Writes one JSON line per finding.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for finding in &self.findings {
            serde_json::to_writer(&mut file, finding)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    }
}

fn judge<'a>(expected: &'a Expected, account: &'a Account) -> Finding<'a> {
    let id = expected.id.as_str();
    let executions = account.executions_of(id);
    let effects = account.effects_of(id);
    let dead = account.dead_reason_of(id);
    let verdict = match (effects, dead) {
        (None, _) if !executions.is_empty() => Verdict::Executed,
        (None | Some(0), None) => Verdict::Lost,
        (None | Some(0), Some(_)) => Verdict::Dead,
        (Some(1), _) => Verdict::Once,
        (Some(_), _) => Verdict::Doubled,
    };
    let mut workers = executions.to_vec();
    workers.dedup();
    Finding { task: expected, verdict, effects, executions: executions.len(), workers, dead }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Execution;

    fn account(sent: &[&str], executions: &[(&str, &str)]) -> Account {
        let mut account = Account::default();
        account.acknowledged(sent.iter().map(|id| Expected { id: (*id).to_owned(), reading: None }));
        let execution = |&(id, worker): &(&str, &str)| Execution {
            task_id: id.to_owned(),
            worker: worker.into(),
            started_at: String::new(),
        };
        account.executed(executions.iter().map(execution).collect());
        account
    }

    #[test]
    fn every_task_gets_exactly_one_verdict() {
        let mut account = account(
            &["once", "rerun", "lost", "dead", "doubled", "once"],
            &[("once", "a"), ("rerun", "a"), ("rerun", "b"), ("doubled", "a"), ("foreign", "a")],
        );
        let effects = [("once".to_owned(), 1), ("rerun".to_owned(), 1), ("doubled".to_owned(), 2)];
        account.set_effects(Some(effects.into()));
        account.set_dead([("dead".to_owned(), "conflict".to_owned())].into());
        let verdicts = Verdicts::of(&account);
        assert_eq!(
            verdicts.totals,
            Totals {
                sent: 5,
                repeated: 1,
                executed: 3,
                once: Some(2),
                lost: 1,
                doubled: Some(1),
                dead: 1,
                rerun: 1
            }
        );
        assert!(!verdicts.totals.kept());
        let verdicts: Vec<_> =
            verdicts.findings.iter().map(|finding| (finding.task.id.as_str(), finding.verdict)).collect();
        assert_eq!(
            verdicts,
            [
                ("once", Verdict::Once),
                ("rerun", Verdict::Once),
                ("lost", Verdict::Lost),
                ("dead", Verdict::Dead),
                ("doubled", Verdict::Doubled)
            ]
        );
    }

    #[test]
    fn counted_effects_take_precedence_over_executions() {
        let mut account = account(&["a"], &[("a", "w")]);
        account.set_effects(Some([].into()));
        assert_eq!(Verdicts::of(&account).totals.lost, 1);
        account.set_effects(Some([("a".to_owned(), 1)].into()));
        assert_eq!(Verdicts::of(&account).totals.once, Some(1));
    }

    #[test]
    fn effects_that_were_not_counted_are_neither_once_nor_doubled() {
        let mut account =
            account(&["run", "twice", "dead", "lost"], &[("run", "a"), ("twice", "a"), ("twice", "b")]);
        account.set_dead([("dead".to_owned(), "expired".to_owned())].into());
        let verdicts = Verdicts::of(&account);
        let json = serde_json::to_value(verdicts.totals).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "sent": 4, "repeated": 0, "executed": 2, "once": null, "lost": 1, "doubled": null, "dead": 1, "rerun": 1
            })
        );
        let found: Vec<_> =
            verdicts.findings.iter().map(|finding| (finding.verdict, finding.effects)).collect();
        assert_eq!(
            found,
            [
                (Verdict::Executed, None),
                (Verdict::Executed, None),
                (Verdict::Dead, None),
                (Verdict::Lost, None)
            ]
        );
        assert!(!verdicts.totals.kept());
        account.set_dead([("dead".to_owned(), String::new()), ("lost".to_owned(), String::new())].into());
        assert!(Verdicts::of(&account).totals.kept(), "as far as it was counted");
    }

    #[test]
    fn an_account_without_tasks_keeps_the_promise() {
        assert!(Verdicts::of(&Account::default()).totals.kept());
    }
}
