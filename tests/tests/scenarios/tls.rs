//! A broker that is only talked to over TLS, and only by those who show a certificate.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    authority::Authority,
    broker::{Broker, BrokerOptions, Tls},
    engine::{self, Mode},
    suite,
    test_env::TestEnv,
    worker::WorkerPlan,
};
use serde_json::json;

async fn last_words(plan: WorkerPlan) -> Result<(Option<i32>, String)> {
    let ended = plan.launch().await?.ended().await?;
    Ok((ended.code, ended.stderr.last().cloned().unwrap_or_default()))
}

#[tokio::test]
async fn worker_and_broker_show_each_other_certificates() -> Result<()> {
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
    let plan = |name: &str| -> Result<_> {
        Ok(env.worker_at(name, &url)?.stdout().env("GARENNE_CONNECT_TIMEOUT", "1s"))
    };

    // Whom nobody vouches for is not talked to, on either side.
    let (code, words) = last_words(plan("trusting-nobody")?).await?;
    assert_eq!(code, Some(69), "{words}");
    assert!(words.contains("certificate"), "{words}");
    let (code, words) = last_words(plan("unknown")?.env("GARENNE_AMQP_TLS__CA", file("ca.pem"))).await?;
    assert_eq!(code, Some(69), "{words}");

    let with = |name: &str| -> Result<_> {
        let plan = plan(name)?.env("GARENNE_AMQP_TLS__CA", file("ca.pem"));
        let plan = plan.env("GARENNE_AMQP_TLS__CERT", file("cert.pem"));
        Ok(plan.env("GARENNE_AMQP_TLS__KEY", file("key.pem")))
    };
    let mut worker = with("known")?.start().await?;
    let ids = env.publish("bench.noop", &json!({}), "task", 50).await?;
    worker.until_done(ids.len()).await?;
    // Found again after it was away, with the files as they are then.
    broker.kill().await?;
    broker.restart().await?;
    worker.until_ready().await?;
    let stopped = worker.stop().await?;
    assert_eq!((stopped.code, stopped.receipt.acked), (0, 50), "{:?}", stopped.receipt);

    let (code, words) = last_words(with("absent")?.env("GARENNE_AMQP_TLS__CERT", file("none.pem"))).await?;
    assert_eq!(code, Some(78), "{words}");
    assert!(words.contains("amqp_tls.cert: ") && words.contains("none.pem cannot be read"), "{words}");
    Ok(())
}
