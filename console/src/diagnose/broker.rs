//! Problems of the broker and the database, as this console reaches them.

use super::{
    Facts,
    problem::{
        Code::{BrokerAlarm, BrokerUnavailable, DatabaseUnavailable, MissingQueue, NoHeartbeats},
        Problem,
        Severity::Critical,
    },
};

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
    match (queue_problem, fleet_problem) {
        (Some(problem), _) => {
            let detail = format!("the queues cannot be read: {problem}");
            problems.push(Problem::new(BrokerUnavailable, Critical, address()).detail(detail).next(check));
        }
        (None, Some(problem)) => {
            let detail = format!("no heartbeats arrive, so what workers do is not known: {problem}");
            problems.push(Problem::new(NoHeartbeats, Critical, address()).detail(detail).next(check));
        }
        (None, None) => {}
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
    let missing = facts.snapshot.map_or(&[][..], |snapshot| &snapshot.missing);
    if !missing.is_empty() && queue_problem.is_none() {
        problems.push(
            Problem::new(MissingQueue, Critical, "")
                .detail(format!("missing: {}", missing.join(", ")))
                .next("run `garenne topology apply`"),
        );
    }
    problems
}
