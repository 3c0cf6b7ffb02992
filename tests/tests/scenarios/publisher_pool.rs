//! The publisher of gateway and workers: what it reports about a message is correct.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use futures_util::future::join_all;
use garenne_amqp::{Broker, Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_protocol::task::{ContentType, Kind, NewTask};
use garenne_tests::harness::{
    fault_proxy::FaultProxy,
    test_env::TestEnv,
    wait::{Seen, WAIT_TIMEOUT, eventually},
};
use lapin::{options::QueueDeclareOptions, types::FieldTable};
use tokio::time::{Instant, timeout};

/// Declares a queue that no worker consumes.
async fn queue(env: &TestEnv) -> Result<String> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    env.client().channel().queue_declare("work".into(), options, FieldTable::default()).await?;
    Ok("work".to_owned())
}

fn publisher(url: &str, config: PublisherConfig) -> Result<Publisher> {
    Ok(Publisher::new(Broker::new(url, "test")?, config))
}

fn message(queue: &str, body: Vec<u8>) -> Result<Message> {
    let task = NewTask::new(Kind::parse("bench.noop")?, ContentType::Json, Vec::new());
    let properties = task.properties(std::time::SystemTime::now());
    Ok(Message { target: Target::queue(queue.to_owned()), properties, body: body.into() })
}

#[tokio::test]
async fn returned_messages_are_reported_to_their_publishers() -> Result<()> {
    let env = TestEnv::new().await?;
    let queue = queue(&env).await?;
    let publisher = publisher(&env.vhost().amqp_url(), PublisherConfig::default())?;
    let publishing = (0..1000).map(async |n| {
        let target = if n % 10 == 3 { format!("missing-{n}") } else { queue.clone() };
        publisher.publish(message(&target, n.to_string().into_bytes())?).await.map_err(anyhow::Error::from)
    });
    let answers = timeout(WAIT_TIMEOUT, join_all(publishing)).await?;
    for (n, answer) in answers.iter().enumerate() {
        if n % 10 == 3 {
            let error = answer.as_ref().unwrap_err().to_string();
            assert_eq!(error, format!("no queue is bound to exchange \"\" for routing key \"missing-{n}\""));
        } else {
            assert!(answer.is_ok(), "{n}: {answer:?}");
        }
    }
    let stored = env.take_all(&queue, 900).await?;
    let stored: BTreeSet<_> = stored.into_iter().map(|taken| taken.body).collect();
    let wanted = (0..1000).filter(|n| n % 10 != 3).map(|n: usize| n.to_string().into_bytes()).collect();
    assert_eq!(stored, wanted);
    Ok(())
}

#[tokio::test]
async fn publishes_beyond_the_in_flight_limit_wait_with_a_timeout() -> Result<()> {
    let env = TestEnv::new().await?;
    let queue = queue(&env).await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let config = PublisherConfig {
        in_flight: 1,
        acquire_timeout: Duration::from_secs(5),
        ..PublisherConfig::default()
    };
    let publisher = publisher(&url, config)?;
    publisher.publish(message(&queue, b"first".to_vec())?).await?;

    proxy.stall();
    let stuck = publisher.send(message(&queue, b"second".to_vec())?).await?;
    let began = Instant::now();
    let busy = publisher.publish(message(&queue, b"third".to_vec())?).await.unwrap_err();
    assert!(matches!(busy, PublishError::Busy { .. }), "{busy:?}");
    assert_eq!(busy.to_string(), "publisher is busy: no in-flight permit within 5s");
    assert!(!busy.in_doubt(), "nothing was sent");
    assert!(began.elapsed().as_secs_f64() >= 5.0, "{:?}", began.elapsed());

    // A waiting publish gets the permit as soon as it is free.
    let fourth = publisher.publish(message(&queue, b"fourth".to_vec())?);
    let restore = async { proxy.heal() };
    let (stuck, waiting, ()) = tokio::join!(stuck.confirmed(), fourth, restore);
    stuck?;
    waiting?;
    let bodies: Vec<_> = env.take_all(&queue, 3).await?.into_iter().map(|taken| taken.body).collect();
    assert_eq!(bodies, [b"first".to_vec(), b"second".to_vec(), b"fourth".to_vec()]);
    Ok(())
}

/// A connection whose socket accepts no more bytes is in use; other publishes wait for it until their timeout.
#[tokio::test]
async fn publishes_wait_for_a_busy_connection_with_a_timeout() -> Result<()> {
    let env = TestEnv::new().await?;
    let queue = queue(&env).await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let config = PublisherConfig {
        acquire_timeout: Duration::from_secs(5),
        confirm_timeout: Duration::from_secs(60),
        ..PublisherConfig::default()
    };
    let publisher = publisher(&url, config)?;
    publisher.publish(message(&queue, b"first".to_vec())?).await?;
    proxy.stall();
    let large = publisher.publish(message(&queue, vec![b'x'; 15 << 20])?);
    let small = async {
        eventually("a publisher that is busy", async || {
            match publisher.publish(message(&queue, b"small".to_vec())?).await {
                Err(error @ PublishError::Busy { .. }) => Ok(Seen::Wanted(error)),
                Err(other) => Err(other.into()),
                Ok(()) => Ok(Seen::Other("sent".to_owned())),
            }
        })
        .await
    };
    let (large, busy) = tokio::join!(large, async {
        let busy = small.await;
        proxy.heal();
        busy
    });
    assert_eq!(busy?.to_string(), "publisher is busy: no connection within 5s");
    large?;
    Ok(())
}

#[tokio::test]
async fn broken_connection_is_replaced() -> Result<()> {
    let env = TestEnv::new().await?;
    let queue = queue(&env).await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let publisher = publisher(&url, PublisherConfig::default())?;
    publisher.publish(message(&queue, b"before".to_vec())?).await?;

    proxy.stall();
    let lost = publisher.send(message(&queue, b"lost".to_vec())?).await?;
    eventually("a message in transit", async || Ok(Seen::when(lost.is_under_way(), "waiting"))).await?;
    proxy.cut();
    let error = lost.confirmed().await.unwrap_err();
    assert!(matches!(error, PublishError::InDoubt(_)) && error.in_doubt(), "{error:?}");
    let refused = publisher.publish(message(&queue, b"refused".to_vec())?).await.unwrap_err();
    assert!(matches!(refused, PublishError::Connect(_) | PublishError::Busy { .. }), "{refused:?}");

    proxy.heal();
    publisher.publish(message(&queue, b"after".to_vec())?).await?;
    assert_eq!(proxy.connections(), 1, "one new connection");
    let bodies: Vec<_> = env.take_all(&queue, 2).await?.into_iter().map(|taken| taken.body).collect();
    assert_eq!(bodies, [b"before".to_vec(), b"after".to_vec()]);
    Ok(())
}

/// A publisher does not wait for ever for a silent broker.
#[tokio::test]
async fn unconfirmed_message_is_in_doubt_after_a_timeout() -> Result<()> {
    let env = TestEnv::new().await?;
    let queue = queue(&env).await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    let config =
        PublisherConfig { confirm_timeout: Duration::from_millis(500), ..PublisherConfig::default() };
    let publisher = publisher(&url, config)?;
    publisher.connect().await?;
    proxy.stall();
    let error = publisher.publish(message(&queue, b"once".to_vec())?).await.unwrap_err();
    assert_eq!(error.to_string(), "unconfirmed: no confirm within 500ms");
    proxy.heal();
    // The broker stored it; without a confirm, the publisher could not know.
    env.take_all(&queue, 1).await.map(drop)
}
