//! What is wrong with gateways and bridges, provoked for real: every tool says the same (`harness::tools`), and `/readyz` of a
//! process names what is wrong with that process.

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    fault_proxy::FaultProxy, gateway::GatewayPlan, mqtt::BridgePlan, port, suite, test_env::TestEnv,
    tools::Tools,
};

const READING: &str = r#"{"device":"d","metric":"m","value":1}"#;

/// The subject of the only problem with this name.
async fn subject_of(tools: &Tools, name: &str) -> Result<String> {
    tools
        .until(name, |problems| {
            let found = problems.as_array()?.iter().find(|it| it["problem"] == name)?;
            Some(found["subject"].as_str()?.to_owned())
        })
        .await
}

/// A bridge without its MQTT broker, and a gateway whose spool has a segment that cannot be read.
#[tokio::test]
async fn problems_of_gateways_and_bridges_are_said_by_every_tool() -> Result<()> {
    let env = TestEnv::new().await?;
    // The bridge has the retry delays of the test environment's workers.
    env.worker("declares")?.start().await?.stop().await?;
    let bridge = BridgePlan::new(&env, &format!("mqtt://127.0.0.1:{}", port::free_port()?)).await?;
    let bridge = bridge.option("--subscribe", "#").option("--maps", "builtin:zigbee2mqtt");
    let bridge = bridge.env("GARENNE_EVENTS__HEARTBEAT", "500ms").begin().await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let spool = env.folder().join("spool");
    let plan = GatewayPlan::at(&url)?.option("--spool", &spool).option("--spool-min-free", "0");
    let plan = plan.env("GARENNE_EVENTS__HEARTBEAT", "500ms");
    proxy.cut();
    let gateway = plan.start().await?;
    gateway.post("/v1/readings", "application/json", READING).await?.ids()?;
    gateway.kill().await?;
    let segments = std::fs::read_dir(&spool)?.filter_map(|it| Some(it.ok()?.path()));
    let segment = segments.filter(|it| it.extension().is_some_and(|it| it == "seg")).max();
    let segment = segment.with_context(|| format!("no segment in {}", spool.display()))?;
    let mut bytes = std::fs::read(&segment)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xFF;
    std::fs::write(&segment, bytes)?;
    proxy.heal();
    let gateway = plan.start().await?;

    let mut tools = Tools::start(&env, &[]).await?;
    tools.until_seen("bridge-disconnected", "bridge bridge", 1).await?;
    bridge.until_not_ready_for("MQTT").await?;
    let subject = subject_of(&tools, "spool-segments-aside").await?;
    tools.until_seen("spool-segments-aside", &subject, 1).await?;
    bridge.kill().await?;
    gateway.kill().await?;
    Ok(())
}

/// The broker takes nothing for an exchange that is gone, so tasks wait in the spool.
#[tokio::test]
async fn problems_of_a_waiting_spool_are_said_by_every_tool() -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("tasks in a spool are a problem after a minute: it needs `./dev test --full`");
        return Ok(());
    }
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let spool = env.folder().join("spool");
    let plan = GatewayPlan::new(&env)?.option("--spool", &spool).option("--spool-min-free", "0");
    let gateway = plan.env("GARENNE_EVENTS__HEARTBEAT", "500ms").start().await?;
    let mut tools = Tools::start(&env, &[]).await?;
    env.client().channel().exchange_delete("garenne.tasks".into(), Default::default()).await?;
    let answer = gateway.post("/v1/readings", "application/json", READING).await?;
    ensure!(answer.body["durability"] == "spooled", "{answer:?}");
    let subject = subject_of(&tools, "spool-waiting").await?;
    tools.until_seen("spool-waiting", &subject, 1).await?;
    gateway.kill().await?;
    Ok(())
}
