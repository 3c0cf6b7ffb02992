//! Workers and gateways publish heartbeats. The console shows their state, and shows workers without heartbeats as
//! silent.

use anyhow::{Context, Result};
use futures_util::StreamExt;
use garenne_protocol::heartbeat::{Heartbeat, Program, Stance};
use garenne_tests::harness::{
    dashboard::Dashboard,
    gateway::GatewayPlan,
    process::{self, Signal},
    test_env::TestEnv,
    vhost::Rights,
    wait::{Seen, WAIT_TIMEOUT, eventually},
    worker::WorkerPlan,
};
use lapin::{
    Consumer, ExchangeKind,
    options::{
        BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::FieldTable,
};
use serde_json::{Value, json};

/// Consumes all heartbeats with a foreign client.
pub(super) async fn listen(env: &TestEnv) -> Result<Consumer> {
    let channel = env.client().channel();
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let none = FieldTable::default;
    let queue = channel.queue_declare("".into(), options, none()).await?.name().clone();
    let bind = QueueBindOptions::default();
    channel.queue_bind(queue.clone(), "garenne.events".into(), "beat.#".into(), bind, none()).await?;
    let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
    Ok(channel.basic_consume(queue, "".into(), options, none()).await?)
}

/// Waits for a heartbeat for which `wanted` is true.
pub(super) async fn until_beat(
    beats: &mut Consumer,
    wanted: impl Fn(&Heartbeat) -> bool,
) -> Result<Heartbeat> {
    let mut last = None;
    let found = tokio::time::timeout(WAIT_TIMEOUT, async {
        while let Some(beat) = beats.next().await {
            let beat: Heartbeat = serde_json::from_slice(&beat?.data)?;
            if wanted(&beat) {
                return Ok(beat);
            }
            last = Some(beat);
        }
        anyhow::bail!("the queue was deleted")
    });
    found.await.with_context(|| format!("no such heartbeat, the last was {last:?}"))?
}

async fn topology(env: &TestEnv) -> Result<()> {
    env.garenne(&["topology", "apply"]).await?;
    Ok(())
}

fn often(plan: WorkerPlan) -> WorkerPlan {
    plan.env("GARENNE_EVENTS__HEARTBEAT", "200ms")
}

#[tokio::test]
async fn heartbeats_report_tasks_lanes_and_states_of_a_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let mut beats = listen(&env).await?;
    let plan = often(env.worker("w")?.lane("fast:prefetch=7,concurrency=2..2"));
    let worker = plan.start().await?;
    env.publish("bench.noop", &json!({}), "done", 20).await?;
    env.publish("bench.fail", &json!({"times": 9}), "failing", 1).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "running", 1).await?;
    let beat = until_beat(&mut beats, |beat| {
        let done = beat.kinds.get("bench.noop").map_or(0, |kind| kind.done());
        let dead = beat.kinds.get("bench.fail").map_or(0, |kind| kind.dead.values().sum());
        // A lane counts a task when its ack is sent, a kind already when its outcome is known.
        let removed = beat.lanes["fast"].removed;
        done == 20 && dead == 1 && beat.running == 1 && removed >= 25
    })
    .await?;
    assert_eq!((beat.program, beat.id.as_str(), beat.stance), (Program::Worker, "w", Stance::Open));
    let lane = &beat.lanes["fast"];
    assert_eq!((lane.slots, lane.capacity, lane.busy, lane.open), (2, 7, 1, true), "{lane:?}");
    // 20 done, 1 running, and 5 attempts at the failing one.
    assert_eq!((lane.delivered, lane.removed, lane.held), (26, 25, 1), "{lane:?}");
    let task = &beat.tasks[0];
    assert_eq!(
        (task.id.as_str(), task.kind.as_str(), task.lane.as_str()),
        ("running-0", "bench.sleep", "fast")
    );
    let failed = &beat.kinds["bench.fail"];
    assert_eq!((failed.started, failed.outcomes["error"], failed.dead["attempts-exhausted"]), (5, 5, 1));
    assert_eq!(beat.kinds["bench.noop"].buckets.iter().sum::<u64>(), 20);
    assert_eq!(beat.kinds["bench.sleep"].started, 1);
    assert!(beat.connections["publish"].up && beat.connections["consume"].up, "{:?}", beat.connections);

    worker.signal(Signal::TSTP)?;
    until_beat(&mut beats, |beat| beat.stance == Stance::Quiet).await?;
    worker.signal(Signal::CONT)?;
    until_beat(&mut beats, |beat| beat.stance == Stance::Open).await?;
    worker.signal(Signal::QUIT)?;
    let last = until_beat(&mut beats, |beat| beat.stance == Stance::Stopped).await?;
    assert_eq!((last.running, last.lanes["fast"].removed, last.lanes["fast"].held), (0, 25, 0), "{last:?}");
    worker.stopped().await?;
    Ok(())
}

#[tokio::test]
async fn heartbeats_that_are_refused_do_not_affect_the_gateways_requests() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let mut beats = listen(&env).await?;
    let reading = r#"{"device":"d","metric":"t","value":1.5,"unit":"Cel","time":"2026-05-04T05:06:07Z"}"#;

    let rights = Rights { configure: "^$", write: r"^garenne\.tasks$", read: "^$" };
    let url = env.vhost().user_url("limited", rights).await?;
    let plan = GatewayPlan::at(&url)?.env("GARENNE_EVENTS__HEARTBEAT", "100ms");
    let limited = plan.start().await?;
    let refused = |lines: &[String]| {
        lines.iter().any(|line| line.contains("the console does not see this process")).then_some(())
    };
    limited.process().stderr().until("the broker's refusal", refused).await?;
    for _ in 0..20 {
        limited.post("/v1/readings", "application/json", reading).await?.ids()?;
    }
    let ended = limited.stop().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);

    let gateway = GatewayPlan::new(&env)?.env("GARENNE_EVENTS__HEARTBEAT", "100ms").start().await?;
    gateway.post("/v1/readings", "application/json", reading).await?.ids()?;
    let beat = until_beat(&mut beats, |beat| {
        beat.gateway.as_ref().is_some_and(|gateway| gateway.requests.get("202") == Some(&1))
    })
    .await?;
    assert_eq!((beat.program, beat.stance), (Program::Gateway, Stance::Open));
    gateway.stop().await?;
    until_beat(&mut beats, |beat| beat.stance == Stance::Stopped).await?;
    Ok(())
}

/// Gateways do not answer status requests, so `status` listens until each of them has sent a heartbeat by itself.
#[tokio::test]
async fn heartbeats_of_a_gateway_are_awaited_by_status() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let worker = env.worker("worker")?.start().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let none = "no gateway or bridge sent a heartbeat";
    let status = process::Program::garenne(env.operator_url(), &["status"]);
    eventually("status hears the gateway", async || {
        let listened = status.run().await?.stdout.join("\n");
        Ok(Seen::when(listened.contains("gateway  ") && !listened.contains(none), listened))
    })
    .await?;
    gateway.stop().await?;
    eventually("an answer of the worker within 100 ms, and none of a gateway", async || {
        let asked = env.garenne(&["status", "--wait", "100ms"]).await?.stdout.join("\n");
        Ok(Seen::when(asked.contains("worker  ") && asked.contains(none), asked))
    })
    .await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn heartbeats_missing_make_a_worker_silent_in_status() -> Result<()> {
    let env = TestEnv::new().await?;
    // With the retry queues of the console's own settings, which it would report as missing otherwise.
    topology(&env).await?;
    let [healthy, frozen, killed] = ["healthy", "frozen", "killed"].map(|name| env.worker(name));
    let (healthy, frozen, killed) = tokio::try_join!(healthy?.start(), frozen?.start(), killed?.start())?;
    env.worker("stopped")?.start().await?.stop().await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "long", 1).await?;
    frozen.signal(Signal::STOP)?;
    killed.kill().await?;
    let fleet = async |more: &[&str]| -> Result<Value> {
        let ended = env.try_garenne(&[&["status", "--json"], more].concat()).await?;
        Ok(serde_json::from_str(&ended.stdout.join("\n"))?)
    };
    let states = |status: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        status["workers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|it| (text(&it["id"]), text(&it["state"])))
            .collect()
    };
    let expected = [("frozen", "silent"), ("killed", "silent"), ("healthy", "open")]
        .map(|(id, state)| (id.to_owned(), state.to_owned()));
    eventually("two workers are silent", async || {
        let status = fleet(&["--wait", "2s"]).await?;
        Ok(Seen::when(states(&status) == expected, format_args!("{status:#}")))
    })
    .await?;
    frozen.signal(Signal::CONT)?;
    env.garenne(&["quiet", "healthy"]).await?;
    eventually("the resumed worker is open, the other is quiet", async || {
        let states = states(&fleet(&[]).await?);
        let is = |id: &str, state: &str| states.iter().any(|it| it.0 == id && it.1 == state);
        Ok(Seen::when(is("frozen", "open") && is("healthy", "quiet"), format_args!("{states:?}")))
    })
    .await?;
    frozen.signal(Signal::QUIT)?;
    healthy.signal(Signal::QUIT)?;
    frozen.stopped().await?;
    healthy.stopped().await?;
    Ok(())
}

/// Anybody who may publish heartbeats can invent processes. They take no place of a worker, count for nothing, and the
/// answers stay small.
#[tokio::test]
async fn heartbeats_that_are_forged_hide_no_worker_and_are_bounded() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let dashboard = Dashboard::start(&env).await?;
    dashboard.until_it_listens(&env).await?;
    let channel = env.client().channel();
    let forge = async |program: &str, id: String, text: &str| -> Result<()> {
        let beat = json!({
            "program": program, "id": id, "incarnation": "i", "started_at": i64::MAX, "at": i64::MAX, "every_ms": u64::MAX,
            "stance": "open", "host": text, "bridge": {"subscriptions": [text]}, "running": 60_000_000,
            "lanes": {"fast": {"slots": 60_000_000, "busy": 60_000_000, "held": u64::MAX, "open": true}},
        });
        let (key, body) = (format!("beat.{program}.{id}"), serde_json::to_vec(&beat)?);
        let options = BasicPublishOptions::default();
        let properties = Default::default();
        channel.basic_publish("garenne.events".into(), key.into(), options, &body, properties).await?;
        Ok(())
    };
    let large = "x".repeat(100_000);
    for n in 0..5_200 {
        forge("gateway", format!("forged-{n}"), "").await?;
    }
    for n in 0..200 {
        forge("bridge", format!("forged-{n}"), &large).await?;
        forge("worker", format!("forged-{n}"), &large).await?;
    }
    // The broker answers after it has routed them.
    let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
    channel
        .exchange_declare("garenne.events".into(), ExchangeKind::Topic, passive, Default::default())
        .await?;
    let flooded = |now: &Value| now["gateways"].as_array().is_some_and(|it| it.len() == 500);
    dashboard.until("the forged gateways", flooded).await?;
    let worker = env.worker("w")?.lane("fast:prefetch=4,concurrency=2..2").start().await?;
    let is_open = |now: &Value| {
        let workers = now["workers"].as_array().into_iter().flatten();
        workers.into_iter().any(|it| it["id"] == "w" && it["state"] == "open")
    };
    let now = dashboard.until("the worker", is_open).await?;
    assert!(now.to_string().len() < 2_000_000, "{}", now.to_string().len());
    let answer = eventually("the lane's only worker is counted", async || {
        let answer = dashboard.json("/scale/fast?min=0&window=0s").await?;
        let load = &answer["load"];
        Ok(Seen::when(load["replicas"] == 1 && load["slots_per_replica"] == 2.0, answer))
    });
    answer.await?;
    forge("worker", "w".to_owned(), "").await?;
    let only = |now: &Value| now["workers"].as_array().is_some_and(|it| it.len() == 1);
    let now = dashboard.until("the forged workers are gone", only).await?;
    assert_eq!(
        (&now["workers"][0]["id"], &now["workers"][0]["lanes"]["fast"]["slots"]),
        (&json!("w"), &json!(2))
    );
    let peak = dashboard.peak_memory()?;
    println!("peak memory of the dashboard: {peak} bytes");
    assert!(peak < 200_000_000, "{peak}");
    worker.stop().await?;
    Ok(())
}
