//! `garenne dead`: listing changes nothing, and a letter is removed only after its copy is confirmed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    test_env::TestEnv,
};
use serde_json::{Value, json};

async fn listed(env: &TestEnv, filter: &[&str]) -> Result<Vec<Value>> {
    let ended = env.garenne(&[&["dead", "list", "--json"], filter].concat()).await?;
    Ok(ended.stdout.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?)
}

/// A test environment with `count` dead letters, every third of an unknown kind.
async fn with_dead_letters(count: usize) -> Result<TestEnv> {
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s").start().await?;
    for n in 0..count {
        let kind = if n % 3 == 0 { "bench.unknown" } else { "bench.sleep" };
        let payload = if n % 3 == 0 { json!({}) } else { json!({"ms": "many"}) };
        env.publish(kind, &payload, &format!("{n}"), 1).await?;
    }
    env.until_queue("garenne.dead", count, 0).await?;
    worker.stop().await?;
    Ok(env)
}

/// Foreign messages have no time of death, so that the order shown is the order in the queue.
#[tokio::test]
async fn dead_letters_keep_their_order_when_listed_a_hundred_times() -> Result<()> {
    let env = with_dead_letters(1).await?;
    for n in 0..30 {
        env.client().publish("", "garenne.dead", with_id(&format!("{n}")), b"{}").await?;
    }
    env.until_queue("garenne.dead", 31, 0).await?;
    let ids = |letters: Vec<Value>| letters.iter().map(|l| l["id"].clone()).collect::<Vec<_>>();
    let first = ids(listed(&env, &[]).await?);
    assert_eq!(first.len(), 31);
    for _ in 0..100 {
        env.garenne(&["dead", "list"]).await?;
    }
    assert_eq!(ids(listed(&env, &[]).await?), first);
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_filtered_replayed_and_dropped() -> Result<()> {
    let env = with_dead_letters(30).await?;
    assert_eq!(listed(&env, &["--reason", "unknown-kind"]).await?.len(), 10);
    assert_eq!(listed(&env, &["--kind", "bench.sleep", "--reason", "invalid-payload"]).await?.len(), 20);
    assert_eq!(listed(&env, &["--error", "NO SUCH TEXT"]).await?.len(), 0);
    assert_eq!(listed(&env, &["--older-than", "1h"]).await?.len(), 0);

    let dry = env.garenne(&["dead", "replay", "--kind", "bench.sleep", "--dry-run"]).await?;
    assert_eq!(dry.stderr.last().map(String::as_str), Some("dry run: 20 would be replayed"));
    assert_eq!(listed(&env, &[]).await?.len(), 30);

    let replayed = env.garenne(&["dead", "replay", "--kind", "bench.sleep", "--limit", "7"]).await?;
    assert_eq!((replayed.code, replayed.stderr.len()), (Some(0), 0), "{:?}", replayed.stderr);
    env.until_ready("fast", 7).await?;
    assert_eq!(listed(&env, &[]).await?.len(), 23);

    let refused = env.try_garenne(&["dead", "drop", "--reason", "unknown-kind"]).await?;
    assert_eq!(refused.code, Some(2));
    assert_eq!(
        refused.stderr,
        ["garenne: drop removes dead letters permanently: check with --dry-run, then repeat with --yes"]
    );
    let dropped = env.garenne(&["dead", "drop", "--reason", "unknown-kind", "--yes"]).await?;
    assert_eq!(dropped.stdout, ["dropped 10 of 23 dead letters"]);
    let replayed = env.garenne(&["dead", "replay", "--all"]).await?;
    assert_eq!(replayed.stdout, ["replayed 13 of 13 dead letters"]);
    env.until_ready("fast", 20).await?;
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn replayed_dead_letters_have_no_headers_of_their_death() -> Result<()> {
    let env = with_dead_letters(2).await?;
    env.garenne(&["dead", "replay", "--kind", "bench.sleep"]).await?;
    env.until_ready("fast", 1).await?;
    let taken = env.client().take("garenne.tasks.fast").await?.context("nothing was replayed")?;
    // Published to the lane's queue, where internal headers are accepted; the tasks exchange ignores them.
    assert_eq!(
        (taken.id(), taken.exchange.as_str(), taken.routing_key.as_str()),
        ("1-0", "", "garenne.tasks.fast")
    );
    assert_eq!(taken.properties.kind().as_ref().map(|kind| kind.as_str()), Some("bench.sleep"));
    assert!(taken.has("garenne-replayed-at"));
    for name in ["reason", "error", "worker", "lane", "attempt", "died-at", "first-seen"] {
        assert!(!taken.has(&format!("garenne-{name}")), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_filtered_by_error_and_age() -> Result<()> {
    let env = with_dead_letters(9).await?;
    assert_eq!(listed(&env, &["--error", "NO HANDLER FOR KIND"]).await?.len(), 3);
    assert_eq!(listed(&env, &["--error", "no handler", "--kind", "bench.sleep"]).await?.len(), 0);
    assert_eq!(listed(&env, &["--older-than", "1ms"]).await?.len(), 9);
    assert_eq!(listed(&env, &["--newer-than", "1h", "--reason", "invalid-payload"]).await?.len(), 6);
    assert_eq!(listed(&env, &["--newer-than", "1ms"]).await?.len(), 0);
    let dropped =
        env.garenne(&["dead", "drop", "--error", "no handler", "--newer-than", "1h", "--yes"]).await?;
    assert_eq!(dropped.stdout, ["dropped 3 of 9 dead letters"]);
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_replayed_no_faster_than_asked() -> Result<()> {
    let env = with_dead_letters(15).await?;
    let began = Instant::now();
    let replayed = env.garenne(&["dead", "replay", "--all", "--rate", "5", "--limit", "11"]).await?;
    assert!(replayed.stdout[0].starts_with("replayed 11 of "), "{:?} {:?}", replayed.stdout, replayed.stderr);
    // The first is not delayed.
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    Ok(())
}

/// The lane's queue becomes full. Letters whose copies it refuses stay, and the command reports them.
#[tokio::test]
async fn dead_letters_stay_until_their_copy_is_confirmed() -> Result<()> {
    let env = with_dead_letters(15).await?;
    let policy = ["policies", env.vhost().name(), "full"];
    let full = json!({
        "pattern": "^garenne[.]tasks[.]fast$", "apply-to": "queues", "definition": { "max-length": 1 },
    });
    env.vhost().broker().management().put(&policy, &full).await?;
    let refused = env.try_garenne(&["dead", "replay", "--kind", "bench.sleep", "--rate", "2"]).await?;
    assert_eq!(refused.code, Some(1), "{:?} {:?}", refused.stdout, refused.stderr);
    assert!(refused.stderr.iter().any(|line| line.contains("refused the message")), "{:?}", refused.stderr);
    let left = listed(&env, &["--kind", "bench.sleep"]).await?.len();
    let taken = env.client().ready("garenne.tasks.fast").await?;
    assert!(taken < 10, "no copy was refused");
    assert_eq!(left + taken, 10, "{left} stayed, {taken} were replayed");
    env.vhost().broker().management().delete(&policy).await?;
    env.garenne(&["dead", "replay", "--kind", "bench.sleep"]).await?;
    env.until_ready("fast", 10).await
}

/// A terminal shows the progress; a pipe gets only the results.
#[tokio::test]
async fn dead_letter_commands_show_a_progress_bar_on_a_terminal() -> Result<()> {
    let env = with_dead_letters(12).await?;
    let replay = ["dead", "replay", "--rate", "20", "--kind", "bench.sleep"];
    let watched = env.garenne_on_terminal(&replay).await?;
    assert_eq!(watched.code, Some(0), "{watched:?}");
    assert_eq!(watched.stdout, ["replayed 8 of 12 dead letters"]);
    for shown in ["replayed ", "/12 ", "/s eta "] {
        assert!(watched.terminal.contains(shown), "{shown:?} is not in {:?}", watched.terminal);
    }
    // More updates than the first and the last one.
    let updates = watched.terminal.matches("eta").count();
    assert!(updates > 2, "{updates} updates: {:?}", watched.terminal);
    let drop = ["dead", "drop", "--all", "--rate", "20", "--yes"];
    let piped = env.garenne(&drop).await?;
    assert_eq!((piped.code, piped.stderr.as_slice()), (Some(0), [].as_slice()));
    assert_eq!(piped.stdout, ["dropped 4 of 4 dead letters"]);
    let env = with_dead_letters(6).await?;
    let watched = env.garenne_on_terminal(&drop).await?;
    assert_eq!(watched.code, Some(0), "{watched:?}");
    assert_eq!(watched.stdout, ["dropped 6 of 6 dead letters"]);
    assert!(watched.terminal.contains("dropped ") && watched.terminal.contains("/6 "), "{watched:?}");
    Ok(())
}

#[tokio::test]
async fn a_dry_run_of_a_replay_predicts_what_the_replay_does() -> Result<()> {
    let env = with_dead_letters(2).await?;
    // Its routing key is that of the queue: neither a kind nor a lane is known.
    env.client().publish("", "garenne.dead", with_id("stray"), b"{}").await?;
    let unmapped = headers([("garenne-reason", text("unmapped"))]);
    env.client()
        .publish("garenne.dead", "bench.sleep", with_id("unmapped").with_headers(unmapped), b"{}")
        .await?;
    for (arguments, moved) in
        [(&["--id", "stray"][..], 0), (&["--limit", "1", "--kind", "bench.sleep"], 1), (&["--all"], 1)]
    {
        let replay = [&["dead", "replay"], arguments].concat();
        let dry = env.try_garenne(&[&replay[..], &["--dry-run"]].concat()).await?;
        let real = env.try_garenne(&replay).await?;
        assert_eq!(dry.stderr[0], format!("dry run: {moved} would be replayed"), "{dry:?}");
        assert_eq!((dry.code, &dry.stderr[1..]), (real.code, &real.stderr[..]), "{arguments:?}");
        assert!(real.stdout[0].starts_with(&format!("replayed {moved} of ")), "{real:?}");
    }
    let left = env.try_garenne(&["dead", "replay", "--all", "--dry-run"]).await?;
    assert_eq!((left.code, left.stderr.len()), (Some(1), 3), "{left:?}");
    Ok(())
}
