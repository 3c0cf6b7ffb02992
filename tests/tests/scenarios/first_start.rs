//! A foreign client publishes with confirms and without `mandatory` while the first worker declares the topology.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    client::{Client, with_id},
    test_env::TestEnv,
};
use lapin::{Confirmation, options::BasicPublishOptions};

/// Publishes until `stop`, one message at a time, as README's example. Returns the ids of the confirmed ones.
async fn publish_until(stop: Arc<AtomicBool>, url: String) -> Result<BTreeSet<String>> {
    let mut confirmed = BTreeSet::new();
    let mut client = Client::connect(&url).await?;
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("task-{n}");
        let (exchange, kind) = ("garenne.tasks".into(), "bench.noop".into());
        let options = BasicPublishOptions::default();
        let sent = client.channel().basic_publish(exchange, kind, options, b"{}", with_id(&id)).await;
        let answer = match sent {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Confirmation::Ack(None)) => drop(confirmed.insert(id)),
            // The exchange does not exist yet, which closes the channel.
            _ => client = Client::connect(&url).await?,
        }
    }
    Ok(confirmed)
}

#[tokio::test]
async fn no_confirmed_task_vanishes_while_the_first_worker_declares_the_topology() -> Result<()> {
    let env = TestEnv::new().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let publishing = tokio::spawn(publish_until(Arc::clone(&stop), env.vhost().amqp_url()));
    let mut worker = env.worker_at("first", &env.vhost().amqp_url())?.stdout().start().await?;
    worker.until_ready().await?;
    stop.store(true, Ordering::Relaxed);
    let confirmed = publishing.await??;
    ensure!(!confirmed.is_empty(), "nothing was published during the start");
    worker.until_done(confirmed.len()).await?;
    let stopped = worker.stop().await?;
    let executed: BTreeSet<_> = stopped.ids().into_iter().map(str::to_owned).collect();
    assert_eq!(confirmed.difference(&executed).count(), 0, "of {} confirmed", confirmed.len());
    assert_eq!(stopped.receipt.dead, 0, "{:?}", stopped.receipt);
    Ok(())
}
