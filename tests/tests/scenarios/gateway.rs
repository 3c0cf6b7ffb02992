//! Sensors send readings and tasks to the gateway; the worker runs what has a receipt.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use garenne_tests::harness::{gateway::GatewayPlan, process::Program, test_env::TestEnv};
use serde_json::{Value, json};

fn reading(device: &str, value: f64) -> String {
    json!({"device": device, "metric": "temperature", "value": value, "unit": "Cel", "time": "2026-11-20T07:30:00Z"})
        .to_string()
}

fn receipt(line: &str) -> Result<String> {
    Ok(line.strip_prefix("ok ").with_context(|| format!("refused: {line}"))?.to_owned())
}

#[tokio::test]
async fn gateway_passes_tasks_of_every_protocol_to_the_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let mut ids = gateway.post("/v1/readings", "application/json", reading("a", 1.0)).await?.ids()?;
    let array = format!("[{},{}]", reading("b", 1.0), reading("c", 1.0));
    ids.extend(gateway.post("/v1/readings", "application/json", array).await?.ids()?);
    let lines = format!("{}\n{}\n", reading("d", 1.0), reading("e", 1.0));
    ids.extend(gateway.post("/v1/readings", "application/x-ndjson", lines).await?.ids()?);
    let pack =
        r#"[{"bn":"urn:dev:ow:1:","n":"temperature","u":"Cel","v":20},{"n":"humidity","u":"%RH","v":50}]"#;
    ids.extend(gateway.post("/v1/readings", "application/senml+json", pack).await?.ids()?);
    ids.extend(gateway.post("/v1/tasks/bench.factorial", "application/json", r#"{"n":5}"#).await?.ids()?);
    for answer in gateway.lines(&[&reading("f", 1.0), &reading("g", 1.0)]).await? {
        ids.push(receipt(&answer)?);
    }
    let influx = gateway.post("/api/v2/write", "text/plain", "cpu,host=h usage=1,load=2").await?;
    assert_eq!(influx.status, 204);

    let done = worker.until_done(ids.len() + 2).await?;
    let done: BTreeSet<_> = done.into_iter().map(|done| done.task_id).collect();
    assert_eq!(done.len(), 12);
    assert!(ids.iter().all(|id| done.contains(id)), "{ids:?} {done:?}");
    assert_eq!(gateway.stop().await?.code, Some(0));
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn gateway_refuses_unbound_kinds_and_invalid_readings() -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let refused = gateway.post("/v1/tasks/unbound.kind", "application/json", "{}").await?;
    assert_eq!((refused.status, &refused.body["code"]), (422, &json!("no-lane")));
    let refused = gateway.post("/v1/readings", "application/json", r#"[{"device":"a"}]"#).await?;
    assert_eq!((refused.status, &refused.body["field"]), (422, &json!("metric")));
    env.is_empty("garenne.unroutable").await?;
    env.is_empty("garenne.tasks.fast").await
}

#[tokio::test]
async fn gateway_refuses_readings_while_the_queue_is_full() -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let policy =
        json!({"pattern": "^garenne\\.tasks\\.fast$", "definition": {"max-length": 5}, "apply-to": "queues"});
    let vhost = env.vhost();
    vhost.broker().management().put(&["policies", vhost.name(), "full"], &policy).await?;
    let mut taken = 0;
    let refused = loop {
        let answer = gateway.post("/v1/readings", "application/json", reading("a", f64::from(taken))).await?;
        if answer.status != 202 {
            break answer;
        }
        taken += 1;
        anyhow::ensure!(taken < 1000, "the queue never became full");
    };
    assert_eq!((refused.status, refused.retry_after), (503, Some(1)), "{}", refused.body);
    assert_eq!(refused.body["code"], "busy");
    let line = gateway.lines(&[&reading("b", 1.0)]).await?.remove(0);
    assert!(line.starts_with("error busy the broker refused the message"), "{line}");
    // Every reading with a receipt is stored. A refused one may be stored or not.
    let worker = env.worker("worker")?.stdout().start().await?;
    worker.until_done(taken as usize).await?;
    let again = gateway.post("/v1/readings", "application/json", reading("c", 1.0)).await?;
    assert_eq!(again.status, 202);
    Ok(())
}

#[tokio::test]
async fn gateway_reports_why_it_cannot_start() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = env.vhost().amqp_url();
    let wrong = GatewayPlan::at(&url.replacen("guest:guest@", "guest:wrong@", 1))?;
    assert_ne!(url, url.replacen("guest:guest@", "guest:wrong@", 1), "the harness has another user");
    let ended = wrong.launch().await?.ended().await?;
    let last = ended.stderr.last().cloned().unwrap_or_default();
    assert_eq!(ended.code, Some(77), "{last}");
    assert!(last.contains("refused user \"guest\""), "{last}");

    let gateway = GatewayPlan::new(&env)?;
    let running = gateway.start().await?;
    let ended = gateway.launch().await?.ended().await?;
    let last = ended.stderr.last().cloned().unwrap_or_default();
    assert_eq!(ended.code, Some(78), "{last}");
    assert!(last.contains("the address is already in use"), "{last}");
    drop(running);

    let ended = gateway.clone().option("--server", "magic").launch().await?.ended().await?;
    assert_eq!(ended.code, Some(78));
    let last = ended.stderr.last().cloned().unwrap_or_default();
    assert!(last.contains("expected worker-pool or connection-pool"), "{last}");
    Ok(())
}

#[tokio::test]
async fn publish_and_replay_send_to_the_broker_directly() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("worker")?.stdout().start().await?;
    let tasks = env.folder().join("tasks.ndjson");
    std::fs::write(&tasks, "{\"n\":1,\"key\":\"k-1\"}\nnonsense\n{\"n\":2,\"key\":\"k-2\"}\n")?;
    let program = |command: &str| {
        Program::new("garenne-producer").arg(command).option("--amqp-url", env.vhost().amqp_url())
    };
    let publish = program("publish").option("--kind", "bench.factorial").option("--id-field", "key");
    let ended = publish.option("--file", &tasks).run().await?;
    assert_eq!(ended.code, Some(1), "a malformed line is an error");
    assert!(
        ended.stderr.iter().any(|line| line.starts_with("publish: line 2: not JSON")),
        "{:?}",
        ended.stderr
    );
    let summary: Value = serde_json::from_str(&ended.stdout.join(""))?;
    assert_eq!((&summary["published"], &summary["malformed"]), (&json!(2), &json!(1)));
    assert_eq!(worker.until_done_with("k-2").await?.output, json!({"factorial": 2.0}));

    let recording = env.folder().join("attic.csv");
    std::fs::write(
        &recording,
        "time,temperature_C,humidity_pct\n2026-01-01T00:00:00Z,20,50\n2026-01-01T00:01:00Z,21,-\n",
    )?;
    let receipts = env.folder().join("receipts.ndjson");
    let ended = program("replay").arg(&recording).option("--receipts", &receipts).run().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let done = worker.until_done(5).await?;
    for line in std::fs::read_to_string(&receipts)?.lines() {
        let receipt: Value = serde_json::from_str(line)?;
        assert_eq!(receipt["device"], "attic");
        assert!(done.iter().any(|done| receipt["id"] == done.task_id.as_str()), "{receipt} is not done");
    }

    // The headings of a site's export name the device of each column. A file where they may not is refused as a whole.
    let (site, row) = (env.folder().join("site.csv"), "2026-01-01T00:02:00Z,19,18\n");
    std::fs::write(&site, format!("time,roof/temperature [°C],hall/temperature [Cel]\n{row}"))?;
    let ended = program("replay").arg(&site).run().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let done = worker.until_done(7).await?;
    let mut stored: Vec<_> = done[5..]
        .iter()
        .map(|done| ["device", "metric", "unit"].map(|field| done.output["readings"][0][field].clone()))
        .collect();
    stored.sort_by_key(|fields| fields[0].to_string());
    assert_eq!(json!(stored), json!([["hall", "temperature", "Cel"], ["roof", "temperature", "Cel"]]));
    std::fs::write(&site, format!("time,roof/temperature,battery\n{row}"))?;
    let refused = program("replay").arg(&site).run().await?;
    assert_eq!((refused.code, refused.stdout), (Some(1), vec![]));
    assert!(
        refused.stderr.join("").contains("\"battery\" has none: give --device-separator /"),
        "{:?}",
        refused.stderr
    );
    Ok(())
}
