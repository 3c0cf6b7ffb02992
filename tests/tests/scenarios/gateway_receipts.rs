//! A receipt means safe, whatever is killed when.

use std::{collections::BTreeSet, path::Path};

use anyhow::Result;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    gateway::GatewayPlan,
    process::Program,
    scene::Scene,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

const ROWS: usize = 1000;

fn recording(path: &Path) -> Result<()> {
    let rows = (0..ROWS).map(|n| format!("{},{},{}\n", 1_767_225_600 + n * 60, n % 40, n % 100));
    let text: String =
        std::iter::once("timestamp,temperature_C,humidity_pct\n".to_owned()).chain(rows).collect();
    Ok(std::fs::write(path, text)?)
}

async fn until_receipts(path: &Path, count: usize) -> Result<()> {
    eventually(format!("{count} receipts"), async || {
        let lines = std::fs::read_to_string(path)?.lines().count();
        Ok(Seen::when(lines >= count, lines))
    })
    .await
}

#[tokio::test]
async fn gateway_receipts_survive_the_death_of_gateway_and_broker() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let mut scene = Scene::on(&broker).await?;
    let plan = GatewayPlan::new(&scene)?;
    let gateway = plan.start().await?;
    let (file, receipts) = (scene.folder().join("barn.csv"), scene.folder().join("receipts.ndjson"));
    recording(&file)?;
    let replay = Program::new("garenne-producer")
        .arg("replay")
        .arg(&file)
        .option("--to", gateway.url())
        .option("--receipts", &receipts)
        .option("--rate", "400")
        .option("--batch", "20");
    let replay = replay.start().await?;

    until_receipts(&receipts, ROWS / 2).await?;
    gateway.kill().await?;
    let gateway = plan.start().await?;
    until_receipts(&receipts, ROWS).await?;
    broker.kill().await?;
    broker.restart().await?;
    until_receipts(&receipts, ROWS * 3 / 2).await?;
    gateway.stop().await?;
    let gateway = plan.start().await?;

    let ended = replay.ended().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let summary: Value = serde_json::from_str(&ended.stdout.join(""))?;
    assert_eq!((&summary["delivered"], &summary["undelivered"]), (&json!(2 * ROWS), &json!(0)), "{summary}");
    assert!(summary["retries"].as_u64() > Some(0), "nothing was in the way: {summary}");
    gateway.stop().await?;

    let promised: BTreeSet<String> = std::fs::read_to_string(&receipts)?
        .lines()
        .map(|line| Ok(serde_json::from_str::<Value>(line)?["id"].as_str().unwrap_or_default().to_owned()))
        .collect::<Result<_>>()?;
    assert_eq!(promised.len(), 2 * ROWS, "a receipt per reading");
    scene.reconnect().await?;
    let mut kept = BTreeSet::new();
    let mut messages = 0;
    while let Some(taken) = scene.client().take("garenne.tasks.fast").await? {
        kept.insert(taken.id().to_owned());
        messages += 1;
    }
    assert_eq!(promised.difference(&kept).count(), 0, "promised and not kept");
    // A repetition carries the same id; there is no other message.
    assert_eq!(kept.len(), 2 * ROWS, "{messages} messages");
    Ok(())
}

#[tokio::test]
async fn gateway_a_blocked_broker_is_pushed_back_and_memory_stays_bounded() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let scene = Scene::on(&broker).await?;
    let gateway = GatewayPlan::new(&scene)?.start().await?;
    let reading = json!({"device": "a", "metric": "m", "value": 1}).to_string();
    assert_eq!(gateway.post("/v1/readings", "application/json", reading.as_str()).await?.status, 202);
    broker.set_memory_alarm(true).await?;
    let refused = gateway.post("/v1/readings", "application/json", reading.as_str()).await?;
    assert_eq!((refused.status, refused.retry_after), (503, Some(1)), "{}", refused.body);
    broker.set_memory_alarm(false).await?;
    eventually("the gateway takes readings again", async || {
        let answer = gateway.post("/v1/readings", "application/json", reading.as_str()).await?;
        Ok(Seen::when(answer.status == 202, answer.status))
    })
    .await?;
    gateway.stop().await?;
    Ok(())
}

#[tokio::test]
async fn gateway_finds_its_broker_again_when_nobody_sends() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let scene = Scene::on(&broker).await?;
    let gateway = GatewayPlan::new(&scene)?.start().await?;
    gateway.until_ready(true).await?;
    broker.stop().await?;
    gateway.until_ready(false).await?;
    broker.restart().await?;
    gateway.until_ready(true).await?;
    let reading = json!({"device": "a", "metric": "m", "value": 1}).to_string();
    assert_eq!(gateway.post("/v1/readings", "application/json", reading).await?.status, 202);
    gateway.stop().await?;
    Ok(())
}
