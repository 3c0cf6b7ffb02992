//! A site's gateway forwards to a central one: the link, the central gateway and its broker fail, the site's gateway is
//! killed, and every accepted reading is stored once.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    gateway::{Gateway, GatewayPlan},
    postgres::Postgres,
    process::Program,
    sensor::{Sensor, stored, until_stored},
    spool::{spool_records, until_spooled},
    test_env::TestEnv,
};

/// Requests of each phase, and readings in each.
const REQUESTS: usize = 20;
const READINGS: usize = 5;

/// The SHA-256 of the token `secret`.
const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

/// A site that forwards to `central`. It knows no broker.
fn site(central: &str, token: &Path, spool: &Path) -> Result<GatewayPlan> {
    let plan = GatewayPlan::without_broker()?.option("--spool", spool).option("--spool-min-free", "0");
    Ok(plan.option("--forward", central).option("--forward-token-file", token))
}

#[tokio::test]
async fn accepted_readings_of_a_site_are_stored_once_after_outages_and_kills() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let worker = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = worker.start().await?;
    let (senders, token, spool) =
        (env.folder().join("senders.toml"), env.folder().join("token"), env.folder().join("site"));
    let entry = format!(
        "[[sender]]\nname = \"site-1\"\ntoken_sha256 = \"{HASH}\"\ndevices = [\"*\"]\nforward = true\n"
    );
    std::fs::write(&senders, entry)?;
    std::fs::write(&token, "secret\n")?;
    let (broker_link, amqp_url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let central_spool = env.folder().join("central");
    let central_plan = GatewayPlan::at(&amqp_url)?.option("--tokens", &senders);
    let central_plan = central_plan.option("--spool", &central_spool).option("--spool-min-free", "0");
    let mut central = central_plan.start().await?;
    central.until_ready(true).await?;
    let link = FaultProxy::start(central_plan.address()).await?;
    let plan = site(&format!("http://{}", link.address()), &token, &spool)?;
    let mut gateway = plan.start().await?;
    gateway.until_ready(true).await?;
    let mut sensor = Sensor::new(READINGS);
    let send = async |sensor: &mut Sensor, gateway: &_| {
        for _ in 0..REQUESTS {
            ensure!(sensor.send(gateway).await?, "the site does not answer");
        }
        Ok(())
    };

    send(&mut sensor, &gateway).await?;
    until_spooled(&spool, |records| records == 0).await?;
    // Without the link, with a kill of the site.
    link.cut();
    send(&mut sensor, &gateway).await?;
    gateway.kill().await?;
    assert_eq!(spool_records(&spool).await?, REQUESTS * READINGS);
    gateway = plan.start().await?;
    send(&mut sensor, &gateway).await?;
    link.heal();
    // Without the central broker: the central gateway's spool does not take them.
    broker_link.cut();
    send(&mut sensor, &gateway).await?;
    until_refused(&gateway, "503").await?;
    assert_eq!(spool_records(&central_spool).await?, 0);
    broker_link.heal();
    // The central gateway is killed while it takes them.
    until_spooled(&spool, |records| records < 4 * REQUESTS * READINGS).await?;
    central.kill().await?;
    send(&mut sensor, &gateway).await?;
    central = central_plan.start().await?;
    until_spooled(&spool, |records| records == 0).await?;

    assert_eq!((sensor.spooled, sensor.unanswered.len()), (5 * REQUESTS, 0), "every answer is marked");
    let accepted: BTreeSet<String> = sensor.accepted.iter().cloned().collect();
    until_stored(&database, accepted.len()).await?;
    let all = stored(&database).await?;
    assert!(all.values().all(|ids| ids.len() == 1), "stored twice: {all:?}");
    assert_eq!(all.into_values().flatten().collect::<BTreeSet<_>>(), accepted, "under the same ids");
    assert_eq!(gateway.stop().await?.code, Some(0));
    assert_eq!(central.stop().await?.code, Some(0));
    assert_eq!(worker.stop().await?.receipt.dead, 0);
    Ok(())
}

/// Waits until the site has logged that the central gateway answered with this status.
async fn until_refused(site: &Gateway, status: &str) -> Result<()> {
    let text = format!("the central gateway answered {status}");
    site.process()
        .stderr()
        .until("a refusal", |lines| lines.iter().any(|line| line.contains(&text)).then_some(()))
        .await
}

/// The right to forward is missing, and the device is not allowed: nothing is lost, and it is sent after the correction.
#[tokio::test]
async fn a_site_whose_rights_are_corrected_later_loses_nothing() -> Result<()> {
    let env = TestEnv::new().await?;
    let (senders, token, spool) =
        (env.folder().join("senders.toml"), env.folder().join("token"), env.folder().join("site"));
    let grant = |rest: &str| {
        let entry = format!("[[sender]]\nname = \"site-1\"\ntoken_sha256 = \"{HASH}\"\n{rest}\n");
        std::fs::write(&senders, entry)
    };
    grant("devices = [\"*\"]")?;
    std::fs::write(&token, "secret\n")?;
    let central = GatewayPlan::new(&env)?.option("--tokens", &senders).start().await?;
    let plan = site(&central.url(), &token, &spool)?;
    let gateway = plan.start().await?;
    let mut sensor = Sensor::new(1);
    ensure!(sensor.send(&gateway).await?, "no answer");
    until_refused(&gateway, "403").await?;
    assert_eq!(spool_records(&spool).await?, 1);

    grant("devices = [\"other\"]\nforward = true")?;
    until_spooled(&spool, |records| records == 0).await?;
    gateway.stop().await?;
    assert_eq!(env.client().ready("garenne.tasks.fast").await?, 0);

    grant("devices = [\"*\"]\nforward = true")?;
    let reloaded = |lines: &[String]| {
        (lines.iter().filter(|line| line.contains("senders reloaded")).count() == 2).then_some(())
    };
    central.process().stderr().until("the corrected senders file", reloaded).await?;
    let requeue = Program::new("garenne-producer").arg("spool").arg("requeue").arg(&spool).run().await?;
    assert_eq!(requeue.code, Some(0), "{:?}", requeue.stderr);
    let gateway = plan.start().await?;
    let taken = env.take_all("garenne.tasks.fast", 1).await?;
    assert_eq!(taken[0].id(), sensor.accepted[0]);
    gateway.stop().await?;
    central.stop().await?;
    Ok(())
}

/// Settings that make no sense are refused by name before anything is accepted.
#[tokio::test]
async fn a_site_without_a_spool_or_with_a_password_in_its_url_is_refused() -> Result<()> {
    for (options, expected) in [
        (vec!["--forward", "http://127.0.0.1:1"], "setting spool = unset (the default) is refused: required"),
        (
            vec!["--forward", "http://u:secret@127.0.0.1:1", "--spool", "spool"],
            "setting forward.url = \"http://u:***@127.0.0.1:1/\"",
        ),
        (vec!["--forward-token-file", "token"], "setting forward.url = unset"),
    ] {
        let program = Program::new("garenne-producer").arg("serve").option("--listen", "127.0.0.1:0");
        let ended = program.args(options).run().await?;
        let errors = ended.stderr.join("\n");
        assert_eq!(ended.code, Some(78), "{errors}");
        assert!(errors.contains(expected) && !errors.contains("secret"), "{errors}");
    }
    Ok(())
}
