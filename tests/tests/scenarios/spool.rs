//! A gateway with a spool: the broker is away, the gateway is killed between the write of a request and its answer, and
//! every accepted reading is stored once.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    client::Taken,
    fault_proxy::FaultProxy,
    frame_proxy::{FrameProxy, Method},
    gateway::{Gateway, GatewayPlan},
    postgres::Postgres,
    process::{Program, Signal},
    sensor::{Sensor, stored, until_stored},
    spool::{spool_summary, until_spooled},
    suite,
    test_env::TestEnv,
    users,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::{Instant, sleep_until};

/// An outage of the broker.
struct Outage {
    duration: Duration,
    /// Kills of the gateway, evenly spread.
    kills: u32,
    /// Readings in a request, and requests per second.
    records: usize,
    requests_per_second: u32,
}

/// For each build.
const SHORT: Outage =
    Outage { duration: Duration::from_secs(6), kills: 5, records: 5, requests_per_second: 40 };
/// For `./dev test --full`: 2,000 readings per second.
const LONG: Outage =
    Outage { duration: Duration::from_secs(600), kills: 5, records: 20, requests_per_second: 100 };
/// Further kills until one of them came between a write and its answer.
const MOST_KILLS: u32 = 20;

/// The size of a spool's segments.
fn size(spool: &Path) -> Result<u64> {
    let segments = spool.read_dir()?.map(|entry| Ok(entry?.path()));
    segments
        .filter(|path: &Result<_>| {
            path.as_ref().map_or(true, |path| path.extension().is_some_and(|it| it == "seg"))
        })
        .map(|path| Ok(path?.metadata()?.len()))
        .sum()
}

/// Kills the gateway as soon as a segment has grown: while a request is written, synced or answered.
async fn kill_at_write(gateway: &Gateway, spool: &Path) -> Result<()> {
    let before = size(spool)?;
    while size(spool)? == before {
        tokio::task::yield_now().await;
    }
    gateway.process().signal(Signal::KILL)
}

/// Whether the last segment has a reading with this time. An export of a large spool takes too long.
fn is_written(spool: &Path, time: usize) -> Result<bool> {
    let segments = spool.read_dir()?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let last = segments.into_iter().filter(|path| path.extension().is_some_and(|it| it == "seg")).max();
    let bytes = std::fs::read(last.context("no segment")?)?;
    let time = OffsetDateTime::from_unix_timestamp(i64::try_from(time)?)?.format(&Rfc3339)?;
    Ok(bytes.windows(time.len()).any(|window| window == time.as_bytes()))
}

/// The times of the readings that wait in a spool.
async fn exported(spool: &Path) -> Result<BTreeSet<usize>> {
    let export = Program::new("garenne-producer").arg("spool").arg("export").arg(spool).run().await?;
    let mut times = BTreeSet::new();
    for line in &export.stdout {
        let record: Value = serde_json::from_str(line)?;
        let time = record["payload"]["time"].as_str().context("a reading without time")?;
        times.insert(usize::try_from(OffsetDateTime::parse(time, &Rfc3339)?.unix_timestamp())?);
    }
    Ok(times)
}

#[tokio::test]
async fn accepted_readings_are_stored_once_after_an_outage_and_kills_of_the_gateway() -> Result<()> {
    let outage = if suite::is_full() { LONG } else { SHORT };
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = worker.start().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    let plan = GatewayPlan::at(&url)?.option("--spool", &spool).option("--spool-min-free", "0");
    let mut gateway = plan.start().await?;
    let mut sensor = Sensor::new(outage.records);
    gateway.until_ready(true).await?;
    eventually("a confirmed answer", async || {
        let before = sensor.spooled;
        sensor.send(&gateway).await?;
        Ok(Seen::when(sensor.spooled == before, "spooled"))
    })
    .await?;

    proxy.cut();
    let mut stored_unanswered = 0;
    for kill in 0..MOST_KILLS {
        let (now, pause) = (Instant::now(), Duration::from_secs(1) / outage.requests_per_second);
        let mut due = now;
        while due < now + outage.duration / outage.kills {
            ensure!(sensor.send(&gateway).await?, "the gateway does not answer");
            due += pause;
            sleep_until(due).await;
        }
        let sending = async {
            while sensor.send(&gateway).await? {}
            Ok::<_, anyhow::Error>(())
        };
        let (sent, killed) = tokio::join!(sending, kill_at_write(&gateway, &spool));
        sent?;
        killed?;
        gateway.kill().await?;
        let unanswered = *sensor.unanswered.last().context("every request was answered")?;
        let first = sensor.times(unanswered).next().context("a request without readings")?;
        stored_unanswered += usize::from(is_written(&spool, first)?);
        gateway = plan.start().await?;
        gateway.until_ready(true).await?;
        // As a sensor does that got no answer. The ids are the same.
        ensure!(sensor.post(&gateway, unanswered).await?, "the repetition is not answered");
        if kill + 1 >= outage.kills && stored_unanswered > 0 {
            break;
        }
    }
    ensure!(stored_unanswered > 0, "no kill came between a write and its answer");
    ensure!(sensor.spooled + 1 >= sensor.requests - sensor.unanswered.len(), "{}", sensor.spooled);

    proxy.heal();
    let accepted: BTreeSet<&String> = sensor.accepted.iter().collect();
    assert_eq!(accepted.len(), sensor.accepted.len());
    until_stored(&database, accepted.len()).await?;
    let all = eventually("every accepted reading is stored", async || {
        let all = stored(&database).await?;
        let found: BTreeSet<&String> = all.values().flatten().collect();
        let missing = accepted.iter().filter(|id| !found.contains(*id)).count();
        Ok(if missing == 0 { Seen::Wanted(all) } else { Seen::Other(format!("{missing} missing")) })
    })
    .await?;
    let twice: Vec<_> = all.iter().filter(|(_, ids)| ids.len() > 1).collect();
    assert!(twice.is_empty(), "stored twice: {twice:?}");

    eventually("the spool is empty and answers are confirmed", async || {
        let summary = spool_summary(&spool).await?;
        Ok(Seen::when(summary["records"] == 0 && summary["set_aside"] == 0, summary))
    })
    .await?;
    eventually("a confirmed answer again", async || {
        let before = sensor.spooled;
        sensor.send(&gateway).await?;
        Ok(Seen::when(sensor.spooled == before, "spooled"))
    })
    .await?;
    assert_eq!(gateway.stop().await?.code, Some(0));
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}

/// The broker stores a request and its confirm is late, so that the request is also spooled, and published twice.
#[tokio::test]
async fn a_reading_that_is_in_the_broker_and_in_the_spool_is_stored_once() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let proxy = FrameProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    let plan = GatewayPlan::at(proxy.url())?.option("--spool", &spool).option("--spool-min-free", "0");
    let mut gateway = plan.start().await?;
    gateway.until_ready(true).await?;
    let mut sensor = Sensor::new(1);
    eventually("a confirmed answer", async || {
        let before = sensor.spooled;
        sensor.send(&gateway).await?;
        Ok(Seen::when(sensor.spooled == before, "spooled"))
    })
    .await?;
    let earlier = env.client().ready("garenne.tasks.fast").await?;
    proxy.pause_at(Method::BASIC_ACK, Duration::from_secs(3));
    let before = sensor.spooled;
    ensure!(sensor.send(&gateway).await?, "no answer");
    assert_eq!(sensor.spooled, before + 1);
    let id = sensor.accepted.last().context("no id")?;
    eventually("the spool is empty", async || Ok(Seen::when(exported(&spool).await?.is_empty(), "not yet")))
        .await?;
    let published = env.client().ready("garenne.tasks.fast").await?;
    ensure!(published >= earlier + 2, "{published} messages, {earlier} before: published only once");

    let worker = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = worker.start().await?;
    env.until_settled(published).await?;
    let all = stored(&database).await?;
    assert_eq!(all.values().flatten().filter(|stored| *stored == id).count(), 1);
    assert_eq!(all.values().flatten().count(), sensor.accepted.len());
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    gateway.stop().await?;
    Ok(())
}

/// The queues of one kind are gone when the broker is back. Its tasks are set aside; the others are published.
#[tokio::test]
async fn tasks_that_the_broker_returns_are_set_aside_and_block_no_others() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    // A gateway that may declare the queues does so when a task is returned.
    let (proxy, url) = FaultProxy::for_url(&users::user(env.vhost(), "gateway").await?).await?;
    let spool = env.folder().join("spool");
    let plan = GatewayPlan::at(&url)?.option("--spool", &spool).option("--spool-min-free", "0");
    let mut gateway = plan.start().await?;
    gateway.until_ready(true).await?;
    eventually("a connection to the broker", async || {
        let answer = gateway.post("/v1/tasks/bench.factorial", "application/json", r#"{"n":5}"#).await?;
        Ok(Seen::when(answer.status == 202 && answer.body.get("durability").is_none(), answer.body))
    })
    .await?;
    // The gateway checks the topology with a connection of its own, and never again.
    eventually("the topology", async || Ok(Seen::when(proxy.connections() == 1, proxy.connections())))
        .await?;
    // Those that were spooled before the connection was open come later, and one whose confirm was late comes twice.
    until_spooled(&spool, |records| records == 0).await?;
    let published = env.client().ready("garenne.tasks.fast").await?;
    proxy.cut();
    let mut ids = Vec::new();
    for kind in ["spectrum.analyze", "bench.factorial"] {
        let answer = gateway.post(&format!("/v1/tasks/{kind}"), "application/json", r#"{"n":5}"#).await?;
        assert_eq!(answer.body["durability"], "spooled");
        ids.extend(answer.ids()?);
    }
    let management = env.vhost().broker().management();
    for queue in ["garenne.tasks.slow", "garenne.tasks.default", "garenne.unroutable"] {
        management.delete(&["queues", env.vhost().name(), queue]).await?;
    }
    proxy.heal();
    env.until_ready("fast", published + 1).await?;
    let export = Program::new("garenne-producer").arg("spool").arg("export").arg(&spool).arg("--set-aside");
    let kept = eventually("the returned task is set aside", async || {
        let lines = export.run().await?.stdout;
        Ok(if lines.len() == 1 { Seen::Wanted(lines) } else { Seen::Other(format!("{lines:?}")) })
    });
    let kept: Value = serde_json::from_str(&kept.await?[0])?;
    assert_eq!((&kept["id"], &kept["kind"]), (&json!(ids[0]), &json!("spectrum.analyze")));
    let log = gateway.process().stderr().lines();
    assert!(log.iter().any(|line| line.contains("is set aside") && line.contains(&ids[0])), "{log:?}");
    gateway.stop().await?;
    Ok(())
}

#[tokio::test]
async fn spool_drain_publishes_what_a_stopped_gateway_left() -> Result<()> {
    let env = TestEnv::new().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    proxy.cut();
    let plan = GatewayPlan::at(&url)?.option("--spool", &spool).option("--spool-min-free", "0");
    let gateway = plan.start().await?;
    let answer = gateway.post("/v1/tasks/bench.factorial", "application/json", r#"{"n":5}"#).await?;
    let ids = answer.ids()?;
    assert_eq!(answer.body["durability"], "spooled");

    let drain = || {
        let program = Program::new("garenne-producer").arg("spool").arg("drain").arg(&spool);
        program.option("--amqp-url", env.vhost().amqp_url())
    };
    let refused = drain().run().await?;
    assert_eq!(refused.code, Some(1));
    let expected = format!("is in use by process {}", gateway.process().id());
    assert!(refused.stderr.iter().any(|line| line.contains(&expected)), "{:?}", refused.stderr);

    gateway.stop().await?;
    let drained = drain().run().await?;
    let summary: Value = serde_json::from_str(&drained.stdout.join(""))?;
    assert_eq!((drained.code, &summary["confirmed"], &summary["remaining"]), (Some(0), &json!(1), &json!(0)));
    let worker = env.worker("worker")?.stdout().start().await?;
    assert_eq!(worker.until_done_with(&ids[0]).await?.output, json!({"factorial": 120.0}));
    Ok(())
}

/// Runs a command of the producer with a spool. Returns its summary.
async fn summary(program: Program, spool: &Path, amqp_url: &str) -> Result<Value> {
    let program = program.option("--amqp-url", amqp_url).option("--spool", spool);
    let ended = program.env("GARENNE_SPOOL_MIN_FREE", "0").run().await?;
    ensure!(ended.code == Some(0), "{:?}", ended.stderr);
    Ok(serde_json::from_str(&ended.stdout.join(""))?)
}

/// Readings that two runs read while the broker is away are in the broker after a third one.
#[tokio::test]
async fn publish_and_replay_spool_what_the_broker_does_not_confirm_and_a_later_run_sends_it() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("declaring")?.start().await?.stop().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let (spool, lines, recording) =
        (env.folder().join("spool"), env.folder().join("tasks.ndjson"), env.folder().join("recording.csv"));
    std::fs::write(&lines, "{\"id\":\"a\",\"n\":5}\n{\"id\":\"b\",\"n\":6}\n")?;
    let rows = ["time,device,temperature", "2026-01-01T00:00:00Z,d1,20.5", "2026-01-01T00:00:01Z,d1,20.6"];
    std::fs::write(&recording, rows.join("\n"))?;
    let publish = || {
        let program = Program::new("garenne-producer").arg("publish").option("--kind", "bench.factorial");
        program.option("--file", &lines).option("--id-field", "id")
    };
    proxy.cut();
    let spooled = summary(publish(), &spool, &url).await?;
    assert_eq!(
        (&spooled["published"], &spooled["spooled"], &spooled["waiting"]),
        (&json!(2), &json!(2), &json!(2))
    );
    let replay = Program::new("garenne-producer").arg("replay").arg(&recording);
    let spooled = summary(replay, &spool, &url).await?;
    assert_eq!(
        (&spooled["delivered"], &spooled["spooled"], &spooled["waiting"]),
        (&json!(2), &json!(2), &json!(4))
    );

    proxy.heal();
    let sent = summary(publish(), &spool, &url).await?;
    assert_eq!(sent["waiting"], json!(0), "{sent}");
    // The third run reads the same two lines again.
    let taken = env.take_all("garenne.tasks.fast", 6).await?;
    let ids: Vec<_> = taken.iter().map(Taken::id).collect();
    assert_eq!(ids.iter().filter(|id| ["a", "b"].contains(id)).count(), 4, "{ids:?}");
    Ok(())
}
