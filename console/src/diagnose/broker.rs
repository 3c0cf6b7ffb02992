//! Problems of the broker and the database, as this console reaches them.

use garenne_protocol::rights::MissingRight;

use super::{
    Facts,
    problem::{
        Code::{AlarmsUnseen, BrokerAlarm, BrokerUnavailable, DatabaseUnavailable, NoHeartbeats},
        Problem,
        Severity::{Critical, Notice},
    },
};

/// The next step if an exchange of heartbeats is missing.
const APPLY: &str = "`garenne topology apply` creates the missing exchange";

pub(super) fn problems(facts: &Facts<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let Facts { queue_problem, fleet_problem, alarm, database_problem, .. } = facts;
    let address = || format!("broker {}", facts.operator.broker.address());
    if let Some(alarm) = alarm {
        problems.push(
            Problem::new(BrokerAlarm, Critical, address())
                .detail(format!("an alarm blocks publishers ({alarm}): results, copies and heartbeats wait, and readings are refused or spooled"))
                .next("give the broker's host memory or disk space; `rabbitmq-diagnostics alarms` names the node"),
        );
    }
    let check = "check that the broker runs, --amqp-url, and the rights of its user";
    // A missing right is named as such.
    let other = |problem: &str| MissingRight::of(problem).is_none();
    match (queue_problem.filter(|it| other(it)), fleet_problem.filter(|it| other(it))) {
        (Some(problem), _) => {
            let detail = format!("the queues cannot be read: {problem}");
            problems.push(Problem::new(BrokerUnavailable, Critical, address()).detail(detail).next(check));
        }
        (None, Some(problem)) if queue_problem.is_none() => {
            let detail = format!("no heartbeats arrive, so what workers do is not known: {problem}");
            // They pass an exchange, and its absence is another problem.
            let names = [facts.operator.names.events(), facts.operator.names.control()];
            let differences = facts.differences.unwrap_or_default();
            let is_absent = differences.iter().any(|it| it.is_missing() && names.contains(&it.name));
            let next =
                if is_absent || names.iter().any(|name| problem.contains(name)) { APPLY } else { check };
            problems.push(Problem::new(NoHeartbeats, Critical, address()).detail(detail).next(next));
        }
        _ => {}
    }
    if let Some(problem) = facts.alarms_unseen.filter(|_| queue_problem.is_none()) {
        let detail = format!("whether an alarm (memory or disk) blocks publishers cannot be seen: {problem}");
        let next = "give this console's user the right write on the control exchange and leave out --read-only, or set --management-url, \
                    whose user needs the tag management or monitoring";
        problems.push(Problem::new(AlarmsUnseen, Notice, address()).detail(detail).next(next));
    }
    if let Some(problem) = database_problem {
        problems.push(
            Problem::new(DatabaseUnavailable, Critical, "database")
                .detail(format!("it does not answer: {problem}"))
                .next(
                    "check that PostgreSQL runs, and --postgres-url; workers keep results until it answers",
                ),
        );
    }
    problems
}
