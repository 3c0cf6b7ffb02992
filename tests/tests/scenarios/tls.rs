//! A broker that accepts only connections over TLS with a client certificate.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use garenne::{Client, broker::Certificates};
use garenne_tests::harness::{
    authority::Authority,
    broker::{Broker, BrokerOptions, Tls},
    engine::{self, Mode},
    suite,
    test_env::TestEnv,
    worker::WorkerPlan,
};
use serde_json::json;

/// The exit code and the last line of standard error of a worker that does not start.
async fn failed_start(plan: WorkerPlan) -> Result<(Option<i32>, String)> {
    let ended = plan.launch().await?.ended().await?;
    Ok((ended.code, ended.stderr.last().cloned().unwrap_or_default()))
}

#[tokio::test]
async fn worker_and_broker_verify_each_others_certificates() -> Result<()> {
    let authority = Authority::new()?;
    let (server, client) = (authority.sign("127.0.0.1")?, authority.sign("worker")?);
    if engine::mode().await == Mode::Process {
        suite::leave_out("a broker with TLS runs in a container only");
        return Ok(());
    }
    let tls = Tls { ca: authority.pem(), cert: server.cert, key: server.key };
    let broker = Broker::start(BrokerOptions { tls: Some(tls), ..BrokerOptions::default() }).await?;
    let env = TestEnv::on(&broker).await?;
    let port = broker.amqps_port().context("no listener for amqps")?;
    let url = format!("amqps://guest:guest@127.0.0.1:{port}/{}", env.vhost().name());
    for (name, content) in [("ca.pem", authority.pem()), ("cert.pem", client.cert), ("key.pem", client.key)] {
        std::fs::write(env.folder().join(name), content)?;
    }
    let file = |name: &str| env.folder().join(name).display().to_string();
    let plan = |name: &str| -> Result<_> { Ok(env.worker_at(name, &url)?.stdout()) };
    let brief = |plan: WorkerPlan| plan.env("GARENNE_CONNECT_TIMEOUT", "1s");

    // Each side refuses a peer without a trusted certificate.
    let (code, error) = failed_start(brief(plan("without-ca")?)).await?;
    assert_eq!(code, Some(69), "{error}");
    assert!(error.contains("certificate"), "{error}");
    let without_certificate = plan("without-certificate")?.env("GARENNE_AMQP_TLS__CA", file("ca.pem"));
    let (code, error) = failed_start(brief(without_certificate)).await?;
    assert_eq!(code, Some(69), "{error}");

    let with = |name: &str| -> Result<_> {
        let plan = plan(name)?.env("GARENNE_AMQP_TLS__CA", file("ca.pem"));
        let plan = plan.env("GARENNE_AMQP_TLS__CERT", file("cert.pem"));
        Ok(plan.env("GARENNE_AMQP_TLS__KEY", file("key.pem")))
    };
    let mut worker = with("known")?.start().await?;
    let ids = env.publish("bench.noop", &json!({}), "task", 50).await?;
    worker.until_done(ids.len()).await?;
    // So does an application that publishes.
    let certificates = Certificates {
        ca: Some(env.folder().join("ca.pem")),
        cert: Some(env.folder().join("cert.pem")),
        key: Some(env.folder().join("key.pem")),
    };
    let untrusted = Client::connect(&url).await.err().context("connected without the authority")?;
    assert!(untrusted.to_string().contains("certificate"), "{untrusted}");
    let client = Client::builder(&url).certificates(certificates).connect().await?;
    let id = client.enqueue_kind("bench.noop", &json!({})).await?;
    worker.until_done_with(id.as_str()).await?;
    client.close().await;
    // A reconnect reads the certificate files again.
    broker.sync_declarations().await?;
    broker.kill().await?;
    broker.restart().await?;
    worker.until_ready().await?;
    let stopped = worker.stop().await?;
    // The broker may have been killed before it stored the last acks: those tasks were delivered again.
    let wanted: BTreeSet<_> = ids.iter().map(String::as_str).chain([id.as_str()]).collect();
    assert_eq!(stopped.ids().into_iter().collect::<BTreeSet<_>>(), wanted);
    let receipt = &stopped.receipt;
    assert!(stopped.code == 0 && receipt.acked >= 51 && receipt.dead == 0, "{receipt:?}");

    let (code, error) = failed_start(with("absent")?.env("GARENNE_AMQP_TLS__CERT", file("none.pem"))).await?;
    assert_eq!(code, Some(78), "{error}");
    assert!(error.contains("amqp_tls.cert: ") && error.contains("none.pem"), "{error}");
    Ok(())
}
