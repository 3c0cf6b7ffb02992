//! `garenne dead replay` and `garenne dead drop` move exactly the selected letters. Equal letters are counted, and
//! letters that cannot be moved stay and are named.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, anyhow};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_common::config::Common;
use garenne_console::dead::{Filter, MoveAction, Mover};
use garenne_operator::{dead::HeldQueue, operator::Operator, settings::FleetSettings};
use garenne_tests::harness::{
    client::{headers, text},
    process::{Ended, Process, Program, Signal},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use lapin::{
    BasicProperties,
    options::QueueDeleteOptions,
    types::{AMQPValue, ShortString},
};

const DEAD: &str = "garenne.dead";
const FAST: &str = "garenne.tasks.fast";

/// A test environment with the topology and without workers.
async fn env() -> Result<TestEnv> {
    let env = TestEnv::new().await?;
    env.worker("declares")?.start().await?.stop().await?;
    Ok(env)
}

/// Publishes the same message `count` times.
async fn publish(
    env: &TestEnv,
    exchange: &str,
    key: &str,
    properties: &BasicProperties,
    count: usize,
) -> Result<()> {
    stream::iter(0..count)
        .map(|_| env.client().publish(exchange, key, properties.clone(), b"{}"))
        .buffered(500)
        .try_collect()
        .await
}

/// A dead letter as a worker publishes it.
fn letter(id: Option<&str>, kind: &str, reason: &str) -> BasicProperties {
    let marks = headers([
        ("garenne-reason", text(reason)),
        ("garenne-error", text("it failed")),
        ("garenne-died-at", AMQPValue::LongLongInt(1_700_000_000_000)),
    ]);
    let properties =
        BasicProperties::default().with_type(kind.into()).with_delivery_mode(2).with_headers(marks);
    match id {
        Some(id) => properties.with_message_id(ShortString::from(id)),
        None => properties,
    }
}

/// Publishes letters `prefix-0` to `prefix-<count - 1>`.
async fn letters(env: &TestEnv, prefix: &str, kind: &str, reason: &str, count: usize) -> Result<()> {
    for n in 0..count {
        publish(env, "", DEAD, &letter(Some(&format!("{prefix}-{n}")), kind, reason), 1).await?;
    }
    Ok(())
}

/// Starts the console without waiting for its end.
async fn start(env: &TestEnv, arguments: &[&str]) -> Result<Process> {
    Program::garenne(env.operator_url(), arguments).env("GARENNE_LOG", "off").start().await
}

/// Waits until at least `count` letters are replayed.
async fn until_replayed(env: &TestEnv, count: usize) -> Result<()> {
    eventually(format!("{count} are replayed"), async || {
        let ready = env.client().ready(FAST).await?;
        Ok(Seen::when(ready >= count, ready))
    })
    .await
}

/// The ids of all messages in the fast lane's queue, which must be `count`.
async fn ids(env: &TestEnv, count: usize) -> Result<Vec<String>> {
    let taken = env.take_all(FAST, count).await?;
    Ok(taken.iter().map(|taken| taken.id().to_owned()).collect())
}

fn ends_with(ended: &Ended, code: i32, stdout: &str) {
    assert_eq!((ended.code, ended.stdout.join("\n").as_str()), (Some(code), stdout), "{:?}", ended.stderr);
}

/// Messages without an id that expire within the same second are equal in every property.
#[tokio::test]
async fn equal_letters_are_replayed_completely_and_once_each() -> Result<()> {
    let env = env().await?;
    let expiring = BasicProperties::default().with_delivery_mode(2).with_expiration("1500".into());
    publish(&env, "garenne.tasks", "bench.noop", &expiring, 3_000).await?;
    env.until_ready_in(DEAD, 3_000).await?;
    let replayed = env.garenne(&["dead", "replay", "--reason", "expired"]).await?;
    ends_with(&replayed, 0, "replayed 3000 of 3000 dead letters");
    env.is_empty(DEAD).await?;
    // Each replayed letter has its own id.
    let ids = ids(&env, 3_000).await?;
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 3_000);
    Ok(())
}

#[tokio::test]
async fn letters_that_are_equal_in_pairs_are_replayed_in_pairs() -> Result<()> {
    let env = env().await?;
    for _ in 0..2 {
        letters(&env, "pair", "bench.noop", "stopped", 40).await?;
    }
    let replayed = env.garenne(&["dead", "replay", "--kind", "bench.#"]).await?;
    ends_with(&replayed, 0, "replayed 80 of 80 dead letters");
    env.is_empty(DEAD).await?;
    let mut ids = ids(&env, 80).await?;
    ids.sort_unstable();
    assert!(ids.chunks(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    ids.dedup();
    assert_eq!(ids.len(), 40);
    Ok(())
}

/// The new letters equal the old ones in every property, so only their number shows that they are new.
#[tokio::test]
async fn letters_that_arrive_during_a_replay_stay_and_are_reported() -> Result<()> {
    let env = env().await?;
    let same = letter(None, "bench.noop", "stopped");
    publish(&env, "", DEAD, &same, 40).await?;
    let replay = start(&env, &["dead", "replay", "--reason", "stopped", "--rate", "20"]).await?;
    until_replayed(&env, 3).await?;
    publish(&env, "", DEAD, &same, 7).await?;
    let ended = replay.ended().await?;
    ends_with(&ended, 0, "replayed 40 of 40 dead letters");
    assert_eq!(
        ended.stderr,
        ["7 more are in garenne.dead: they arrived during the run, or another program was holding them"]
    );
    assert_eq!(env.client().ready(FAST).await?, 40);
    // The walk requeued them; the broker applies that with a delay.
    env.until_ready_in(DEAD, 7).await
}

#[tokio::test]
async fn letters_that_cannot_be_published_stay_and_are_named() -> Result<()> {
    let env = env().await?;
    letters(&env, "good", "bench.noop", "stopped", 30).await?;
    letters(&env, "lost", "alert.notify", "stopped", 3).await?;
    // Its copy is published without the large header: with an id and a date, the header frame would be too large.
    let large = headers([("large", text(&"x".repeat(130_990)))]);
    let large = BasicProperties::default().with_delivery_mode(2).with_headers(large);
    publish(&env, DEAD, "bench.large", &large, 1).await?;
    letters(&env, "late", "bench.noop", "stopped", 10).await?;
    env.client().channel().queue_delete("garenne.tasks.slow".into(), QueueDeleteOptions::default()).await?;

    let replayed = env.try_garenne(&["dead", "replay", "--kind", "#"]).await?;
    ends_with(&replayed, 1, "replayed 41 of 44 dead letters");
    let errors = replayed.stderr.join("\n");
    let reason =
        "3 not replayed: no queue is bound to exchange \"\" for routing key \"garenne.tasks.slow\": ";
    // The broker answers in any order.
    let (_, names) = errors.split_once(reason).with_context(|| errors.clone())?;
    assert_eq!(names.split(", ").collect::<BTreeSet<_>>(), ["lost-0", "lost-1", "lost-2"].into(), "{errors}");
    assert_eq!(replayed.stderr.len(), 1, "{errors}");
    assert_eq!(env.client().ready(DEAD).await?, 3);
    let ids = ids(&env, 41).await?;
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 41, "{ids:?}");
    Ok(())
}

#[tokio::test]
async fn letters_are_moved_only_by_an_explicit_selection() -> Result<()> {
    let env = env().await?;
    letters(&env, "stopped", "bench.noop", "stopped", 20).await?;
    letters(&env, "poison", "bench.noop", "poison", 20).await?;
    let refusal = [
        "garenne: no dead letters are selected: set --kind, --exact-kind, --reason, --error, --error-like, --text, --group, \
                    --older-than, --newer-than, --id or --all",
    ];
    for refused in [
        &["dead", "replay"][..],
        &["dead", "replay", "--limit", "5"],
        &["dead", "replay", "--dry-run"],
        &["dead", "drop", "--yes"],
    ] {
        let ended = env.try_garenne(refused).await?;
        assert_eq!(
            (ended.code, ended.stderr.as_slice()),
            (Some(2), &refusal.map(str::to_owned)[..]),
            "{refused:?}"
        );
    }
    let both = env.try_garenne(&["dead", "replay", "--all", "--kind", "bench.noop"]).await?;
    assert_eq!(both.code, Some(2), "{both:?}");
    assert_eq!((env.client().ready(FAST).await?, env.client().ready(DEAD).await?), (0, 40));

    let dropped = env.garenne(&["dead", "drop", "--reason", "poison", "--id", "poison-3", "--yes"]).await?;
    ends_with(&dropped, 0, "dropped 1 of 40 dead letters");
    let dropped = env.garenne(&["dead", "drop", "--reason", "poison", "--yes"]).await?;
    ends_with(&dropped, 0, "dropped 19 of 39 dead letters");
    let replayed = env.garenne(&["dead", "replay", "--all"]).await?;
    ends_with(&replayed, 0, "replayed 20 of 20 dead letters");
    let ids = ids(&env, 20).await?;
    assert!(ids.iter().all(|id| id.starts_with("stopped-")), "{ids:?}");
    Ok(())
}

#[tokio::test]
async fn an_interrupted_replay_settles_the_letters_it_has_copied() -> Result<()> {
    let env = env().await?;
    letters(&env, "task", "bench.noop", "stopped", 300).await?;
    let replay = start(&env, &["dead", "replay", "--reason", "stopped", "--rate", "20"]).await?;
    until_replayed(&env, 30).await?;
    replay.signal(Signal::INT)?;
    let ended = replay.ended().await?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stderr, ["interrupted: dead letters that were not replayed remain in garenne.dead"]);
    let replayed = env.client().ready(FAST).await?;
    assert!((30..300).contains(&replayed), "{replayed}");
    assert!(ended.stdout[0].starts_with(&format!("replayed {replayed} of ")), "{ended:?}");
    env.until_ready_in(DEAD, 300 - replayed).await
}

#[tokio::test]
async fn a_killed_replay_loses_no_letter_and_duplicates_have_the_same_id() -> Result<()> {
    let env = env().await?;
    letters(&env, "task", "bench.noop", "stopped", 300).await?;
    let replay = start(&env, &["dead", "replay", "--reason", "stopped", "--rate", "20"]).await?;
    until_replayed(&env, 30).await?;
    replay.kill().await?;
    let copied = env.client().ready(FAST).await?;
    assert!(copied < 300, "all were replayed before it was killed");
    eventually("the broker has requeued the letters", async || {
        let ready = env.client().ready(DEAD).await? + env.client().ready(FAST).await?;
        Ok(Seen::when(ready >= 300, ready))
    })
    .await?;
    env.garenne(&["dead", "replay", "--reason", "stopped"]).await?;
    env.is_empty(DEAD).await?;
    let all = env.client().ready(FAST).await?;
    let ids: BTreeSet<_> = ids(&env, all).await?.into_iter().collect();
    assert_eq!(ids.len(), 300, "of {all}");
    Ok(())
}

/// A replay that takes longer than it may hold letters reads the queue in several passes.
#[tokio::test]
async fn a_slow_replay_moves_each_letter_once_over_several_passes() -> Result<()> {
    let env = env().await?;
    let same = letter(None, "bench.noop", "stopped");
    publish(&env, "", DEAD, &same, 30).await?;
    publish(&env, "", DEAD, &letter(Some("kindless"), "garenne.dead", "stopped"), 1).await?;
    letters(&env, "task", "bench.noop", "stopped", 30).await?;
    letters(&env, "other", "bench.noop", "poison", 10).await?;

    let common =
        Common { amqp_url: env.operator_url().parse().map_err(anyhow::Error::msg)?, ..Common::default() };
    let operator = Operator::new(FleetSettings { common, ..FleetSettings::default() });
    let operator = operator.map_err(|failure| anyhow!("{failure}"))?;
    let filter = Filter { reason: vec!["stopped".to_owned()], ..Filter::default() };
    let all = Mover::new(&operator, HeldQueue::Dead, filter, MoveAction::Replay);
    let mover = Mover { rate: Some(8), hold: Duration::from_millis(400), ..all };
    let publishing = async {
        until_replayed(&env, 5).await?;
        publish(&env, "", DEAD, &same, 5).await
    };
    let (moved, published) = tokio::join!(mover.run(), publishing);
    published?;
    let moved = moved.map_err(|failure| anyhow!("{failure}"))?;
    assert_eq!((moved.moved, moved.missed, moved.arrived), (60, 0, 5), "{moved:?}");
    let kept = &moved.failures["it has neither a kind nor a lane"];
    assert_eq!((kept.count, kept.letters.as_slice()), (1, &["kindless".to_owned()][..]));
    assert_eq!(env.client().ready(DEAD).await?, 16);
    let ids = ids(&env, 60).await?;
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 60, "{ids:?}");
    assert_eq!(ids.iter().filter(|id| id.starts_with("task-")).count(), 30, "{ids:?}");
    Ok(())
}

#[tokio::test]
async fn a_letter_of_an_unbound_kind_goes_to_the_catch_all_lane() -> Result<()> {
    let env = env().await?;
    publish(&env, "", DEAD, &letter(Some("odd"), "unbound.kind", "stopped"), 1).await?;
    let replayed = env.garenne(&["dead", "replay", "--id", "odd"]).await?;
    ends_with(&replayed, 0, "replayed 1 of 1 dead letters");
    let taken = env.take_all("garenne.tasks.default", 1).await?;
    assert_eq!((taken[0].id(), taken[0].routing_key.as_str()), ("odd", "garenne.tasks.default"));
    assert!(taken[0].has("garenne-replayed-at") && !taken[0].has("garenne-reason"), "{taken:?}");
    Ok(())
}
