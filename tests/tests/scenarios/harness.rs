//! The harness itself: its servers and proxies can be stopped, disturbed and inspected, and leave nothing behind.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions, BrokerVersion},
    engine::Mode,
    fault_proxy::FaultProxy,
    postgres::Postgres,
    raw_amqp::{Outcome, Property, RawClient, RawMessage, Table},
    vhost::{Rights, VirtualHost},
    wait::{Seen, eventually},
};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{
        BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Longer than any step takes; only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);

async fn channel(url: &str) -> Result<Channel> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

async fn declare_quorum(channel: &Channel, queue: &str) -> Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, arguments).await?;
    Ok(())
}

async fn publish(channel: &Channel, queue: &str, count: usize) -> Result<()> {
    for _ in 0..count {
        let persistent = BasicProperties::default().with_delivery_mode(2);
        let confirm = channel
            .basic_publish("".into(), queue.into(), BasicPublishOptions::default(), b"x", persistent)
            .await?
            .await?;
        ensure!(matches!(confirm, Confirmation::Ack(None)), "not confirmed: {confirm:?}");
    }
    Ok(())
}

/// Polls the broker's statistics, which it updates twice a second, until the queue has these counts.
async fn until_queue(vhost: &VirtualHost, queue: &str, ready: u64, unacked: u64) -> Result<()> {
    let wanted = async {
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            tick.tick().await;
            let status = vhost.view().queue(queue).await?;
            if (status.ready, status.unacked) == (ready, unacked) {
                return anyhow::Ok(());
            }
        }
    };
    timeout(LONG, wanted)
        .await
        .with_context(|| format!("{queue} never had {ready} ready, {unacked} unacked"))?
}

#[tokio::test]
async fn shared_broker_gives_each_scenario_a_virtual_host() -> Result<()> {
    let broker = Broker::shared().await?;
    assert!(broker.version() >= BrokerVersion(3, 10, 0), "{}", broker.version());
    let (one, other) = (broker.vhost().await?, broker.vhost().await?);
    declare_quorum(&channel(&one.amqp_url()).await?, "mine").await?;
    assert_eq!(one.view().queue("mine").await?.kind, "quorum");
    assert_eq!(other.view().queues().await?, []);

    let name = one.name().to_owned();
    drop(one);
    let gone = async {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        while broker.management().vhost(&name).queues().await.is_ok() {
            tick.tick().await;
        }
    };
    timeout(LONG, gone).await.context("the virtual host is still there")
}

#[tokio::test]
async fn management_sees_queue_consumer_and_connection() -> Result<()> {
    let vhost = Broker::shared().await?.vhost().await?;
    let channel = channel(&vhost.amqp_url()).await?;
    declare_quorum(&channel, "work").await?;
    publish(&channel, "work", 10).await?;
    channel.basic_qos(3, BasicQosOptions::default()).await?;
    let mut consumer = channel
        .basic_consume("work".into(), "me".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    until_queue(&vhost, "work", 7, 3).await?;

    let seen = eventually("the consumer", async || {
        let mut consumers = vhost.view().consumers().await?;
        Ok(consumers.pop().map_or(Seen::Other("none".into()), Seen::Wanted))
    })
    .await?;
    assert_eq!((seen.queue(), seen.tag.as_str(), seen.prefetch), ("work", "me", 3));

    vhost.broker().management().close_connection(seen.connection()).await?;
    let ended = async {
        while let Some(delivery) = consumer.next().await {
            if delivery.is_err() {
                break;
            }
        }
    };
    timeout(LONG, ended).await.context("the consumer did not end with its connection")?;
    until_queue(&vhost, "work", 10, 0).await
}

#[tokio::test]
async fn limited_user_is_denied() -> Result<()> {
    let vhost = Broker::shared().await?.vhost().await?;
    let url = vhost.user_url("reader", Rights { configure: "", write: "", read: ".*" }).await?;
    let channel = channel(&url).await?;
    let refused = declare_quorum(&channel, "work").await.unwrap_err().to_string();
    assert!(refused.contains("ACCESS_REFUSED"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn broker_keeps_confirmed_messages_over_kill_and_stop() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let vhost = broker.vhost().await?;
    let before = channel(&vhost.amqp_url()).await?;
    declare_quorum(&before, "work").await?;
    // A kill can lose a new queue; once the statistics show its messages, they are written.
    publish(&before, "work", 5).await?;
    until_queue(&vhost, "work", 5, 0).await?;

    broker.kill().await?;
    assert!(broker.management().version().await.is_err(), "a killed broker answered");
    broker.restart().await?;
    until_queue(&vhost, "work", 5, 0).await?;

    broker.stop().await?;
    broker.restart().await?;
    until_queue(&vhost, "work", 5, 0).await?;
    publish(&channel(&vhost.amqp_url()).await?, "work", 1).await?;
    until_queue(&vhost, "work", 6, 0).await
}

#[tokio::test]
async fn paused_broker_confirms_after_it_is_unpaused() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let vhost = broker.vhost().await?;
    let channel = channel(&vhost.amqp_url()).await?;
    declare_quorum(&channel, "work").await?;

    broker.pause().await?;
    let confirmed = publish(&channel, "work", 1);
    tokio::pin!(confirmed);
    timeout(Duration::from_millis(500), &mut confirmed).await.expect_err("a paused broker confirmed");
    broker.unpause().await?;
    timeout(LONG, confirmed).await?
}

#[tokio::test]
async fn memory_alarm_blocks_publishers() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let vhost = broker.vhost().await?;
    let channel = channel(&vhost.amqp_url()).await?;
    declare_quorum(&channel, "work").await?;

    broker.set_memory_alarm(true).await?;
    let confirmed = publish(&channel, "work", 1);
    tokio::pin!(confirmed);
    timeout(Duration::from_millis(500), &mut confirmed).await.expect_err("a blocked publisher was confirmed");
    broker.set_memory_alarm(false).await?;
    timeout(LONG, confirmed).await?
}

#[tokio::test]
async fn broker_uses_configuration_lines() -> Result<()> {
    let conf = vec!["channel_max = 7".to_owned()];
    let broker = Broker::start(BrokerOptions { conf, ..BrokerOptions::default() }).await?;
    let set = broker.exec_ctl(&["eval", "application:get_env(rabbit, channel_max)."]).await?;
    assert!(set.contains("{ok,7}"), "{set}");
    Ok(())
}

#[tokio::test]
async fn dropped_broker_leaves_nothing_behind() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let port = reqwest::Url::parse(&broker.amqp_url())?.port().context("a port")?;
    let script = match broker.mode() {
        Mode::Docker => format!("docker ps --all --quiet --filter publish={port}"),
        // The broker's arguments contain its node name; `[g]` keeps grep from matching its own arguments.
        Mode::Process => format!("grep -ls [g]arenne-{port}@localhost /proc/[0-9]*/cmdline || true"),
    };
    let remains = || -> Result<String> {
        let output = Command::new("sh").args(["-c", &script]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    assert_ne!(remains()?, "", "the check does not find the running broker");
    drop(broker);
    let gone = async {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        while !remains()?.is_empty() {
            tick.tick().await;
        }
        anyhow::Ok(())
    };
    timeout(Duration::from_secs(5), gone).await.context("a process or container of the broker is left")?
}

#[tokio::test]
async fn postgres_gives_each_scenario_a_database() -> Result<()> {
    let server = Postgres::shared().await?;
    let (one, other) = (server.database().await?, server.database().await?);
    one.connect().await?.batch_execute("CREATE TABLE mine (n int); INSERT INTO mine VALUES (7)").await?;
    let row = one.connect().await?.query_one("SELECT n FROM mine", &[]).await?;
    assert_eq!(row.get::<_, i32>(0), 7);
    let missing = other.connect().await?.query("SELECT n FROM mine", &[]).await.unwrap_err();
    assert_eq!(missing.code(), Some(&tokio_postgres::error::SqlState::UNDEFINED_TABLE));
    Ok(())
}

#[tokio::test]
async fn postgres_keeps_rows_over_a_kill() -> Result<()> {
    let server = Postgres::start().await?;
    let database = server.database().await?;
    database.connect().await?.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").await?;
    server.kill().await?;
    assert!(database.connect().await.is_err(), "a killed server answered");
    server.restart().await?;
    let row = database.connect().await?.query_one("SELECT n FROM t", &[]).await?;
    assert_eq!(row.get::<_, i32>(0), 7);
    Ok(())
}

/// Starts a server that echoes its input.
async fn echo() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    Ok(address)
}

async fn round_trip(stream: &mut TcpStream, text: &[u8; 4]) -> Result<()> {
    stream.write_all(text).await?;
    let mut back = [0; 4];
    stream.read_exact(&mut back).await?;
    ensure!(back == *text, "got {back:?} back");
    Ok(())
}

#[tokio::test]
async fn proxy_stalls_cuts_resets_and_restores_connections() -> Result<()> {
    let proxy = FaultProxy::start(&echo().await?).await?;
    let mut stream = TcpStream::connect(proxy.address()).await?;
    round_trip(&mut stream, b"one.").await?;
    assert_eq!(proxy.connections(), 1);

    proxy.stall();
    {
        let held = round_trip(&mut stream, b"two.");
        tokio::pin!(held);
        timeout(Duration::from_millis(100), &mut held)
            .await
            .expect_err("a stalled connection forwarded bytes");
        proxy.heal();
        timeout(LONG, held).await.context("a restored connection forwards nothing")??;
    }

    proxy.drop_connections();
    let lost = stream.read_u8().await.unwrap_err();
    assert_eq!(lost.kind(), std::io::ErrorKind::ConnectionReset);
    let mut stream = TcpStream::connect(proxy.address()).await?;
    round_trip(&mut stream, b"new.").await?;

    proxy.cut();
    let lost = stream.read_u8().await.unwrap_err();
    assert_eq!(lost.kind(), std::io::ErrorKind::ConnectionReset);
    let mut refused = TcpStream::connect(proxy.address()).await?;
    assert!(refused.read_u8().await.is_err(), "a cut proxy accepted a connection");

    proxy.heal();
    round_trip(&mut TcpStream::connect(proxy.address()).await?, b"end.").await
}

#[tokio::test]
async fn proxy_forwards_a_half_close() -> Result<()> {
    let proxy = FaultProxy::start(&echo().await?).await?;
    let mut stream = TcpStream::connect(proxy.address()).await?;
    let sent = vec![7; 1 << 20];
    let (mut from, mut to) = stream.split();
    let send = async {
        to.write_all(&sent).await?;
        to.shutdown().await
    };
    let mut back = Vec::new();
    let receive = from.read_to_end(&mut back);
    tokio::try_join!(send, receive)?;
    assert!(back == sent, "{} of {} bytes came back", back.len(), sent.len());
    Ok(())
}

#[tokio::test]
async fn amqp_goes_through_the_proxy() -> Result<()> {
    let vhost = Broker::shared().await?.vhost().await?;
    let (proxy, url) = FaultProxy::for_url(&vhost.amqp_url()).await?;
    let channel = channel(&url).await?;
    declare_quorum(&channel, "work").await?;
    publish(&channel, "work", 1).await?;
    proxy.cut();
    assert!(publish(&channel, "work", 1).await.is_err(), "published through a cut proxy");
    until_queue(&vhost, "work", 1, 0).await
}

#[tokio::test]
async fn raw_client_reads_the_bytes_that_it_wrote() -> Result<()> {
    let vhost = Broker::shared().await?.vhost().await?;
    // A quorum queue would add `x-delivery-count` on 3.10.
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel(&vhost.amqp_url()).await?.queue_declare("work".into(), options, FieldTable::default()).await?;
    let mut raw = RawClient::connect(&vhost.amqp_url()).await?;
    // Sorted by name, as the broker sorts them.
    let headers = Table::new()
        .table("deep", &Table::nested_tables(3_000))
        .text([b'h', 0xFF], [0xC0, 0x80])
        .array("list", &Table::new().value(b'V', &[]).value(b'S', &[0, 0, 0, 1, 0xFF]))
        .integer("number", -1);
    let all =
        Property::ALL.into_iter().fold(RawMessage::to("", "work"), |message, property| match property {
            Property::Headers => message.headers(&headers),
            Property::DeliveryMode => message.property(property, [2]),
            // The broker requires it to be the connection's user.
            Property::UserId => message.property(property, "guest"),
            // The broker reads it as milliseconds.
            Property::Expiration => message.property(property, "60000"),
            Property::Priority => message.property(property, [9]),
            Property::Timestamp => message.property(property, [0xFF; 8]),
            _ => message.property(property, [b'x', 0xFE, 0, 0x80]),
        });
    // The broker accepts frames of eight bytes more than negotiated.
    let limit = raw.frame_max();
    let messages = [
        all.body([0, 159, 146, 150]),
        RawMessage::to("", "work").property(Property::DeliveryMode, [2]).body(vec![7; 300_000]),
        RawMessage::to("", "work").padded_to(&Table::new(), limit + 8),
    ];
    let outcomes = raw.publish_all(&messages).await?;
    ensure!(outcomes == vec![Outcome::Confirmed; 3], "{outcomes:?}");
    for message in &messages {
        let got = raw.get("work").await?.context("a message")?;
        ensure!(
            got.routing_key == b"work" && got.body == message.body,
            "the message differs from the published one"
        );
        let (wrote, read) = (message.encoded_properties(), got.properties());
        let at = wrote.iter().zip(read).take_while(|(wrote, read)| wrote == read).count();
        ensure!(
            wrote == read,
            "from byte {at}, {:x?} became {:x?}",
            wrote.get(at..at + 30),
            read.get(at..at + 30)
        );
    }
    ensure!(raw.get("work").await?.is_none(), "the queue has one more message");
    let mut unroutable = RawMessage::to("", [0xFF]);
    unroutable.mandatory = true;
    ensure!(raw.publish(&unroutable).await? == Outcome::Confirmed && raw.returned() == 1, "not returned");

    let too_large = RawMessage::to("", "work").padded_to(&Table::new(), limit + 9);
    let outcomes = raw.publish_all(&[messages[1].clone(), too_large, messages[1].clone()]).await?;
    ensure!(matches!(outcomes[1], Outcome::Closed(501, _)), "{outcomes:?}");
    ensure!(matches!(outcomes[2], Outcome::Closed(501, _)), "{outcomes:?}");
    let missing = RawClient::connect(&vhost.amqp_url()).await?.get("nothing").await.unwrap_err();
    ensure!(format!("{missing:#}").contains("404"), "{missing:#}");
    Ok(())
}
