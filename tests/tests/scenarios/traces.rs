//! Traces reach from the sender through gateway and worker to the sink, also for retries, batches and follow-ups.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    collector::{Collector, Trace},
    gateway::{Gateway, GatewayPlan},
    postgres::{Database, Postgres},
    sensor::until_stored,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::{Value, json};

/// The sender's span and trace.
const SENDER: &str = "b7ad6b7169203331";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const FAST: &str = "garenne.tasks.fast";

/// Exports spans without much delay.
const EXPORT_DELAY: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "100");

async fn gateway(env: &TestEnv, collector: &str) -> Result<Gateway> {
    GatewayPlan::new(env)?.option("--otlp", collector).env(EXPORT_DELAY.0, EXPORT_DELAY.1).start().await
}

/// A worker that gets its collector from OpenTelemetry's standard variable.
fn worker(env: &TestEnv, name: &str, collector: &str) -> Result<WorkerPlan> {
    let plan =
        env.worker(name)?.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector).env(EXPORT_DELAY.0, EXPORT_DELAY.1);
    Ok(plan.lane("fast:prefetch=50,concurrency=1..2"))
}

fn storing(plan: WorkerPlan, database: &Database) -> WorkerPlan {
    plan.option("--sink", "postgres").option("--postgres-url", database.url())
}

/// Posts with the header `traceparent` and returns the task ids.
async fn post(gateway: &Gateway, path: &str, trace: &str, body: &Value) -> Result<Vec<String>> {
    let request = reqwest::Client::new().post(format!("{}{path}", gateway.url()));
    let request = request.header("traceparent", format!("00-{trace}-{SENDER}-01")).json(body);
    let answer: Value = request.send().await?.error_for_status()?.json().await?;
    serde_json::from_value(answer["ids"].clone()).context("a 202 without ids")
}

fn reading(n: usize) -> Value {
    json!({"device": "d", "metric": "t", "value": n, "unit": "Cel", "time": 1_790_000_000 + n})
}

/// Checks the spans from the request to the publish, and returns the id of the publish span.
fn publish_span<'a>(trace: &'a Trace, route: &str) -> Result<&'a str> {
    let request = trace.under(SENDER, route)?;
    assert_eq!((request.service.as_str(), request.kind), ("garenne-gateway", "SPAN_KIND_SERVER"));
    assert_eq!(request.attribute("http.response.status_code"), "202");
    let publish = trace.under(&request.id, "publish garenne.tasks")?;
    assert_eq!((publish.service.as_str(), publish.kind), ("garenne-gateway", "SPAN_KIND_PRODUCER"));
    assert_eq!(publish.attribute("messaging.system"), "rabbitmq");
    Ok(&publish.id)
}

#[tokio::test]
async fn traces_a_reading_from_its_sender_through_gateway_and_worker_into_the_sink() -> Result<()> {
    let (env, collector) = (TestEnv::new().await?, Collector::start().await?);
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(worker(&env, "worker", collector.url())?, &database).start().await?;
    let gateway = gateway(&env, collector.url()).await?;
    let id = post(&gateway, "/v1/readings", TRACE, &reading(1)).await?.remove(0);
    let trace = collector.until_trace(TRACE, 4).await?;
    let publish = publish_span(&trace, "POST /v1/readings")?;
    let process = trace.under(publish, &format!("process {FAST}"))?;
    assert_eq!((process.service.as_str(), process.kind), ("garenne-worker", "SPAN_KIND_CONSUMER"));
    let attributes = ["messaging.message.id", "garenne.kind", "garenne.attempt", "garenne.lane"]
        .map(|it| process.attribute(it));
    assert_eq!(attributes, [id.as_str(), "reading.process", "1", "fast"]);
    assert_eq!(
        ["garenne.outcome", "garenne.settlement"].map(|it| process.attribute(it)),
        ["success", "acked"]
    );
    let write = trace.under(&process.id, "write postgres")?;
    assert_eq!((write.kind, write.attribute("db.system.name")), ("SPAN_KIND_CLIENT", "postgresql"));
    // They are counted when the collector has answered.
    eventually("both spans count as exported", async || {
        let exported = worker.metric("garenne_spans_total", &["result=\"exported\""]).await?;
        Ok(Seen::when(exported == 2.0, exported))
    })
    .await?;
    assert_eq!(gateway.stop().await?.code, Some(0));
    assert_eq!(worker.stop().await?.receipt.acked, 1);
    Ok(())
}

/// Several readings of one request, or of several senders, are published as one batch. Each record keeps the trace of
/// its sender.
#[tokio::test]
async fn traces_every_record_of_a_batch_in_its_senders_trace() -> Result<()> {
    let (env, collector) = (TestEnv::new().await?, Collector::start().await?);
    let database = Postgres::shared().await?.database().await?;
    let worker = storing(worker(&env, "worker", collector.url())?, &database).start().await?;
    let gateway = gateway(&env, collector.url()).await?;
    let readings: Vec<_> = (0..3).map(reading).collect();
    let mut ids = post(&gateway, "/v1/readings", TRACE, &json!(readings)).await?;
    let trace = collector.until_trace(TRACE, 2 + 3 * 2).await?;
    let publish = publish_span(&trace, "POST /v1/readings")?;
    let processed = trace.all_under(publish, &format!("process {FAST}"));
    let mut done: Vec<_> =
        processed.iter().map(|span| span.attribute("messaging.message.id").to_owned()).collect();
    done.sort_unstable();
    ids.sort_unstable();
    assert_eq!(done, ids);
    for process in processed {
        trace.under(&process.id, "write postgres")?;
    }

    // A batch as the gateway publishes it for two senders and a task without a trace.
    let others = ["1bf7651916cd43dd8448eb211c80319c", "2cf7651916cd43dd8448eb211c80319c"];
    let record = |n: usize, trace: &str| {
        let parent = format!("00-{trace}-{SENDER}-01");
        json!({"id": format!("r-{n}"), "traceparent": parent, "payload": reading(n)})
    };
    let untraced = json!({"id": "r-9", "payload": reading(9)});
    let batch = json!([record(7, others[0]), record(8, others[1]), untraced]);
    let properties = with_id("batch").with_content_type("application/vnd.garenne.batch+json".into());
    let body = serde_json::to_vec(&batch)?;
    env.client().publish("garenne.tasks", "reading.process", properties, &body).await?;
    for (other, id) in others.iter().zip(["r-7", "r-8"]) {
        let trace = collector.until_trace(other, 2).await?;
        let process = trace.under(SENDER, &format!("process {FAST}"))?;
        assert_eq!(process.attribute("messaging.message.id"), id);
        trace.under(&process.id, "write postgres")?;
    }
    assert_eq!(gateway.stop().await?.code, Some(0));
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.delivered, receipt.acked), (2, 2), "one message each: {receipt:?}");
    let spans = collector.spans();
    let received = spans
        .iter()
        .find(|span| span.name == format!("receive {FAST}"))
        .context("the worker started no trace")?;
    let started = collector.until_trace(&received.trace_id, 3).await?;
    let process = started.under(&received.id, &format!("process {FAST}"))?;
    assert_eq!(process.attribute("messaging.message.id"), "r-9");
    Ok(())
}

#[tokio::test]
async fn traces_attempts_as_siblings_and_follow_ups_as_children() -> Result<()> {
    let (env, collector) = (TestEnv::new().await?, Collector::start().await?);
    let worker = worker(&env, "worker", collector.url())?.stdout().start().await?;
    let gateway = gateway(&env, collector.url()).await?;
    let failing = post(&gateway, "/v1/tasks/bench.fail", TRACE, &json!({"times": 1})).await?.remove(0);
    assert_eq!(worker.until_done_with(&failing).await?.attempt, 2);
    let trace = collector.until_trace(TRACE, 5).await?;
    let publish = publish_span(&trace, "POST /v1/tasks/{kind}")?;
    let mut attempts = trace.all_under(publish, &format!("process {FAST}"));
    attempts.sort_by_key(|span| span.attribute("garenne.attempt"));
    let values = |name: &str| attempts.iter().map(|span| span.attribute(name)).collect::<Vec<_>>();
    assert_eq!(values("garenne.attempt"), ["1", "2"]);
    assert_eq!(values("garenne.outcome"), ["error", "success"]);
    assert_eq!(values("garenne.settlement"), ["retried", "acked"]);
    assert!(attempts[0].error.is_some() && attempts[1].error.is_none());
    trace.under(&attempts[1].id, "write stdout")?;
    let line: Value = serde_json::from_str(&worker.until_logged("attempt failed, will be retried").await?)?;
    assert_eq!((line["task"].as_str(), line["trace_id"].as_str()), (Some(failing.as_str()), Some(TRACE)));

    let next = "1bf7651916cd43dd8448eb211c80319c";
    let parent_task = json!({"kind": "bench.noop", "payload": {}, "count": 1});
    post(&gateway, "/v1/tasks/bench.follow", next, &parent_task).await?;
    let trace = collector.until_trace(next, 7).await?;
    let publish = publish_span(&trace, "POST /v1/tasks/{kind}")?;
    let parent = trace.under(publish, &format!("process {FAST}"))?;
    let sent = trace.under(&parent.id, &format!("publish {FAST}"))?;
    let child = trace.under(&sent.id, &format!("process {FAST}"))?;
    assert_eq!((sent.kind, child.attribute("garenne.kind")), ("SPAN_KIND_PRODUCER", "bench.noop"));
    trace.under(&child.id, "write stdout")?;
    worker.stop().await?;
    gateway.stop().await?;
    Ok(())
}

/// Without a collector there are no spans, but the trace id of a task is logged, and copies keep `traceparent`.
#[tokio::test]
async fn trace_ids_are_logged_and_propagated_without_a_collector() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let parent = format!("00-{TRACE}-{SENDER}-01");
    let traced = |id: &str| with_id(id).with_headers(headers([("traceparent", text(&parent))]));
    let publish = async |kind: &str, id: &str, body: &Value| {
        env.client().publish("garenne.tasks", kind, traced(id), body.to_string().as_bytes()).await
    };
    publish("bench.fail", "fails", &json!({"times": 1})).await?;
    publish("bench.factorial", "bad", &json!({"n": "five"})).await?;
    worker.until_done_with("fails").await?;
    let is_traced = async |message: &str, task: &str| {
        let line = worker.until_logged(&format!("\"message\":\"{message}\"")).await?;
        let log: Value = serde_json::from_str(&line)?;
        assert_eq!((log["task"].as_str(), log["trace_id"].as_str()), (Some(task), Some(TRACE)), "{line}");
        anyhow::Ok(())
    };
    is_traced("attempt failed, will be retried", "fails").await?;
    is_traced("dead letter", "bad").await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("traceparent")), ("bad", parent.clone()));
    publish("bench.panic", "panics", &json!({})).await?;
    is_traced("panic", "panics").await?;
    let text = worker.get("/metrics").await?;
    assert!(!text.contains("garenne_spans_total"), "there are no spans to count");
    worker.stop().await?;
    Ok(())
}

/// Maximum duration of a stop that only waits for the export of the last spans.
const STOP: Duration = Duration::from_secs(15);

#[tokio::test]
async fn traces_without_a_working_collector_delay_neither_tasks_nor_stops() -> Result<()> {
    const READINGS: usize = 6000;
    let silent = Collector::silent().await?;
    for collector in [Collector::unused_url()?, silent.url().to_owned()] {
        let env = TestEnv::new().await?;
        let database = Postgres::shared().await?.database().await?;
        let worker = storing(worker(&env, "worker", &collector)?, &database).start().await?;
        let gateway = gateway(&env, &collector).await?;
        for from in (0..READINGS).step_by(500) {
            let readings: Vec<_> = (from..from + 500).map(reading).collect();
            assert_eq!(post(&gateway, "/v1/readings", TRACE, &json!(readings)).await?.len(), 500);
        }
        until_stored(&database, READINGS).await?;
        env.until_lane("fast", 0, 0).await?;
        let began = Instant::now();
        assert_eq!(gateway.stop().await?.code, Some(0));
        let lost: f64 = worker.metric("garenne_spans_total", &["result=\"dropped\""]).await?;
        let stopped = worker.stop().await?;
        assert!(began.elapsed() < STOP, "{:?}", began.elapsed());
        assert_eq!((stopped.code, stopped.receipt.acked), (0, stopped.receipt.delivered), "{stopped:?}");
        assert_eq!(database.count("garenne_readings").await?, READINGS as i64);
        // Two spans per reading exceed the queue of spans for a collector that never answers.
        assert!(collector != silent.url() || lost > 0.0, "{lost}");
    }
    Ok(())
}
