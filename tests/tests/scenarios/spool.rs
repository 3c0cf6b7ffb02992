//! A gateway with a spool: the broker is away, the gateway is killed several times, and every accepted reading is stored
//! once.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    gateway::{Gateway, GatewayPlan},
    postgres::{Database, Postgres},
    process::{Program, Signal},
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

/// Kills of the gateway while the broker is away.
const KILLS: usize = 5;
/// Requests that are answered before each kill.
const REQUESTS: usize = 40;
/// Readings in a request.
const RECORDS: usize = 5;

/// A sensor that counts: every reading has a time of its own.
#[derive(Default)]
struct Sensor {
    second: usize,
    accepted: Vec<String>,
    spooled: usize,
}

impl Sensor {
    /// Sends a request. Returns whether it was answered; only then its readings count.
    async fn send(&mut self, gateway: &Gateway) -> Result<bool> {
        let readings: Vec<Value> = (0..RECORDS)
            .map(|index| {
                let time = 1_790_000_000 + self.second + index;
                json!({"device": "d1", "metric": "temperature", "value": 20.5, "unit": "Cel", "time": time})
            })
            .collect();
        self.second += RECORDS;
        let body = Value::from(readings).to_string();
        let Ok(answer) = gateway.post("/v1/readings", "application/json", body).await else {
            return Ok(false);
        };
        self.accepted.extend(answer.ids()?);
        self.spooled += usize::from(answer.body["durability"] == "spooled");
        Ok(true)
    }
}

/// The ids of the stored readings. A reading that is stored twice is in it twice.
async fn stored(database: &Database) -> Result<Vec<String>> {
    let client = database.connect().await?;
    let rows = client.query("SELECT task_id FROM garenne_readings", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[tokio::test]
async fn accepted_readings_are_stored_once_after_an_outage_and_kills_of_the_gateway() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = worker.start().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    let plan = GatewayPlan::at(&url)?.option("--spool", &spool).option("--spool-min-free", "0");
    let mut gateway = plan.start().await?;
    let mut sensor = Sensor::default();
    gateway.until_ready(true).await?;
    eventually("a confirmed answer", async || {
        let before = sensor.spooled;
        sensor.send(&gateway).await?;
        Ok(Seen::when(sensor.spooled == before, "spooled"))
    })
    .await?;

    proxy.cut();
    for _ in 0..KILLS {
        for _ in 0..REQUESTS {
            assert!(sensor.send(&gateway).await?);
        }
        // Killed while a request is in flight.
        let sending = async {
            while sensor.send(&gateway).await? {}
            Ok::<_, anyhow::Error>(())
        };
        let (sent, killed) = tokio::join!(sending, async { gateway.process().signal(Signal::KILL) });
        sent?;
        killed?;
        gateway.kill().await?;
        gateway = plan.start().await?;
        gateway.until_ready(true).await?;
    }
    assert!(sensor.spooled >= KILLS * REQUESTS - 1, "{}", sensor.spooled);

    proxy.heal();
    let accepted: BTreeSet<&String> = sensor.accepted.iter().collect();
    assert_eq!(accepted.len(), sensor.accepted.len());
    let all = eventually("every accepted reading is stored", async || {
        let all = stored(&database).await?;
        let found: BTreeSet<&String> = all.iter().collect();
        let missing = accepted.iter().filter(|id| !found.contains(*id)).count();
        Ok(if missing == 0 { Seen::Wanted(all) } else { Seen::Other(format!("{missing} missing")) })
    })
    .await?;
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "no reading is stored twice");

    eventually("the spool is empty and answers are confirmed", async || {
        let show =
            Program::new("garenne-producer").arg("spool").arg("show").arg(&spool).arg("--json").run().await?;
        let summary: Value = serde_json::from_str(&show.stdout.join(""))?;
        Ok(Seen::when(summary["records"] == 0 && summary["set_aside"] == 0, summary))
    })
    .await?;
    let before = sensor.spooled;
    assert!(sensor.send(&gateway).await?);
    assert_eq!(sensor.spooled, before, "confirmed by the broker again");
    assert_eq!(gateway.stop().await?.code, Some(0));
    assert_eq!(worker.stop().await?.receipt.dead, 0);
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
    assert_eq!((drained.code, &summary["drained"], &summary["remaining"]), (Some(0), &json!(1), &json!(0)));
    let worker = env.worker("worker")?.stdout().start().await?;
    assert_eq!(worker.until_done_with(&ids[0]).await?.output, json!({"factorial": 120.0}));
    Ok(())
}
