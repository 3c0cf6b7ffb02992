//! Senders with protocols of their own: InfluxDB's lines over TCP, payloads for a map over TCP, OpenTelemetry's metrics.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    gateway::{Gateway, GatewayPlan},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Done,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A time in nanoseconds.
const TIME: u64 = 1_790_000_000_000_000_000;

/// The value of each series, with the ids of its tasks.
fn series(done: &[Done]) -> Result<BTreeMap<String, (f64, BTreeSet<String>)>> {
    let mut series: BTreeMap<String, (f64, BTreeSet<String>)> = BTreeMap::new();
    for task in done {
        let reading = &task.output["readings"][0];
        let text = |field: &str| reading[field].as_str().with_context(|| format!("{field} in {reading}"));
        let name = format!("{} {}", text("device")?, text("metric")?);
        let value = reading["value"].as_f64().context("a value")?;
        let known = series.entry(name).or_insert((value, BTreeSet::new()));
        ensure!(known.0 == value, "two values of {reading}");
        known.1.insert(task.task_id.clone());
    }
    Ok(series)
}

/// Sends these lines as Telegraf's `socket_writer` does, then ends. Returns all answers.
async fn send(gateway: &Gateway, lines: &str) -> Result<String> {
    let mut stream = TcpStream::connect(gateway.address()).await?;
    stream.write_all(lines.as_bytes()).await?;
    stream.shutdown().await?;
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await?;
    Ok(answers)
}

fn metrics(value: f64) -> String {
    let point = json!({"timeUnixNano": TIME.to_string(), "asDouble": value});
    let histogram = json!({"name": "latency", "histogram": {"dataPoints": [{"count": "1"}], "aggregationTemporality": 2}});
    let gauge = json!({"name": "temperature", "unit": "Cel", "gauge": {"dataPoints": [point]}});
    let resource = json!({"attributes": [{"key": "host.name", "value": {"stringValue": "otel-1"}}]});
    let scope = json!({"metrics": [gauge, histogram]});
    json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}).to_string()
}

async fn post_metrics(gateway: &Gateway) -> Result<(u16, Value)> {
    let answer = gateway.post("/v1/metrics", "application/json", metrics(21.5)).await?;
    Ok((answer.status, answer.body))
}

#[tokio::test]
async fn readings_of_every_door_reach_the_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let lines = format!("cpu,host=telegraf-1 usage=1.5,load=2i {TIME}\nnonsense\nT value=3 {TIME}\n");
    let answers = send(&gateway, &lines).await?;
    assert!(answers.starts_with("error malformed line 2: line: not line protocol"), "{answers}");
    assert_eq!(answers.lines().count(), 1, "{answers}");
    gateway
        .process()
        .stderr()
        .until("the refused line in the log", |log| {
            let line = log.iter().find(|line| line.contains("influx-tcp") && line.contains("malformed"))?;
            line.contains("line=2").then_some(())
        })
        .await?;

    let uplink = json!({
        "end_device_ids": {"device_id": "soil-1"},
        "received_at": "2026-11-24T09:15:30Z",
        "uplink_message": {
            "frm_payload": "AQI=", "decoded_payload": {"temperature": 7.5}, "received_at": "2026-11-24T09:15:30Z"
        }
    });
    let answers = send(&gateway, &format!("map ttn\n{uplink}\n{{}}\n")).await?;
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!((answers[0], answers[2]), ("ok ttn", "error unmapped no rule matches"), "{answers:?}");
    assert!(answers[1].starts_with("ok "), "{answers:?}");

    let (status, body) = post_metrics(&gateway).await?;
    assert_eq!((status, &body["partialSuccess"]["rejectedDataPoints"]), (200, &json!(1)), "{body}");

    let found = series(&worker.until_done(5).await?)?;
    let values: Vec<(&str, f64)> = found.iter().map(|(name, (value, _))| (name.as_str(), *value)).collect();
    assert_eq!(
        values,
        [
            ("T T", 3.0),
            ("otel-1 temperature", 21.5),
            ("soil-1 temperature", 7.5),
            ("telegraf-1 cpu.load", 2.0),
            ("telegraf-1 cpu.usage", 1.5),
        ]
    );
    assert_eq!(gateway.stop().await?.code, Some(0));
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn lines_wait_for_the_broker_and_a_repeated_export_has_the_same_id() -> Result<()> {
    const LINES: u64 = 500;
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let gateway = GatewayPlan::at(&url)?.start().await?;
    assert_eq!(post_metrics(&gateway).await?.0, 200);
    proxy.cut();
    eventually("the exporter is told to repeat", async || {
        let (status, body) = post_metrics(&gateway).await?;
        Ok(Seen::when(status == 503 && body["code"] == json!(14), body))
    })
    .await?;

    // Half of the lines have no time, so that only their ids tell that they are the same.
    let lines: String = (0..LINES)
        .map(|n| match n % 2 {
            0 => format!("m,device=d{n} value={n} {}\n", TIME + n * 1_000),
            _ => format!("m,device=d{n} value={n}\n"),
        })
        .collect();
    let sending = send(&gateway, &lines);
    let healing = async {
        gateway
            .until_metric(r#"garenne_gateway_requests_total{protocol="influx-tcp",status="delayed"}"#)
            .await?;
        proxy.heal();
        anyhow::Ok(())
    };
    let (answers, healed) = tokio::join!(sending, healing);
    healed?;
    assert_eq!(answers?, "", "no line is refused");
    eventually("the exporter succeeds", async || {
        let (status, body) = post_metrics(&gateway).await?;
        Ok(Seen::when(status == 200, body))
    })
    .await?;

    let all = usize::try_from(LINES)? + 1;
    let found = eventually("all readings", async || {
        let found = series(&worker.done()?)?;
        Ok(match found.len() {
            count if count == all => Seen::Wanted(found),
            count => Seen::Other(count.to_string()),
        })
    })
    .await?;
    for (name, (value, ids)) in &found {
        assert_eq!(ids.len(), 1, "{name} = {value} has one id: {ids:?}");
    }
    env.is_empty("garenne.dead").await
}
