//! What is missing on the broker, and rights on it.

use super::*;

#[test]
fn what_is_missing_on_the_broker_is_named_once_and_briefly() {
    let mut fleet = Fleet::new();
    let queue = |n: usize| format!("garenne.retry.fast.{n}");
    fleet.snapshot.missing = (0..17).map(queue).collect();
    let binding =
        |queue: &str| Difference::missing("binding", format!("garenne.tasks -> {queue} (reading.#)"));
    let differs =
        Difference { what: "queue", name: "garenne.dead".into(), detail: "x is 1, should be 2".into() };
    fleet.differences = Ok(vec![
        Difference::missing("queue", "garenne.retry.fast.3".into()),
        Difference::missing("queue", "garenne.directives".into()),
        Difference::missing("exchange", "garenne.events".into()),
        binding("garenne.retry.fast.3"),
        binding("garenne.tasks.fast"),
        Difference::missing("binding", "garenne.events -> garenne.audit (audit.#)".into()),
        differs,
    ]);
    assert_eq!(
        fleet.lines(),
        [
            "critical missing-queue missing queues: garenne.directives, garenne.retry.fast.0, garenne.retry.fast.1, \
             garenne.retry.fast.10, garenne.retry.fast.11 and 13 more",
            "critical missing-exchange missing exchange: garenne.events",
            "critical missing-binding missing binding: garenne.tasks -> garenne.tasks.fast (reading.#)",
            "warning topology-differs the broker differs from the settings: queue garenne.dead: x is 1, should be 2",
        ]
    );
    // The queue is back, and the topology was not compared since.
    fleet.snapshot.missing = Vec::new();
    fleet.snapshot.queues = [("garenne.retry.fast.3".to_owned(), QueueStatus::default())].into();
    assert_eq!(fleet.lines()[0], "critical missing-queue missing queue: garenne.directives");
}

#[test]
fn a_refusal_of_the_broker_is_a_missing_right_of_its_user() {
    let refusal = |user: &str, resource: &str| {
        format!("ACCESS_REFUSED - write access to {resource} in vhost '/' refused for user '{user}'")
    };
    let mut fleet = Fleet::new();
    let denied = refusal("w", "exchange 'amq.default'");
    fleet.hear("worker", "w", json!({"denied": denied}));
    fleet.hear("worker", "w2", json!({"denied": denied}));
    fleet.hear("gateway", "g", json!({"denied": refusal("g", "exchange 'garenne.tasks'")}));
    fleet.pauses =
        Err("ACCESS_REFUSED - read access to queue 'garenne.audit' in vhost '/' refused for user 'c'");
    assert_eq!(
        fleet.lines(),
        [
            r#"critical missing-right user g: user "g" lacks the right write on exchange "garenne.tasks" in virtual host "/""#,
            r#"critical missing-right user w: user "w" lacks the right write on exchange "amq.default" in virtual host "/""#,
            r#"warning missing-right user c: user "c" lacks the right read on queue "garenne.audit" in virtual host "/""#,
        ]
    );
    let next = |n: usize| fleet.problems()[n].next.clone();
    assert_eq!(
        next(0),
        r"`rabbitmqctl set_permissions -p '/' 'g' '^$' '^garenne\.(tasks|events)$' '^$'` gives it all rights of a gateway"
    );
    assert!(next(1).contains(r"'^garenne\.worker\..*'"), "{}", next(1));
    let unheard =
        "ACCESS_REFUSED - read access to exchange 'garenne.events' in vhost '/' refused for user 'c'";
    fleet.fleet_problem = Some(unheard);
    let codes: Vec<_> = fleet.problems().iter().map(|it| (it.problem, it.severity)).collect();
    assert_eq!(codes, [(MissingRight, Critical)], "the cause, and not also what follows from it");
}
