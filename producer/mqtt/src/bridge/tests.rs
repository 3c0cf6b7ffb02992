use std::io;

use bytes::BytesMut;
use garenne_amqp::PublishError;
use garenne_common::{
    config::Size,
    supervise::{self, TaskHandle},
    telemetry::Metrics,
};
use garenne_map::Map;
use garenne_protocol::{
    sensor::Limits,
    task::{Kind, NewTask},
};
use garenne_publish::{SpoolingSender, TaskSender};
use garenne_spool::{Spool, SpoolConfig};
use rumqttc::mqttbytes::{
    QoS,
    v4::{ConnAck, ConnectReturnCode, Packet, PubAck, Publish, SubAck, SubscribeReasonCode},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
};

use super::*;

const MAP: &str = "[[map]]\ntopic = \"n/+\"\ndevice = \"{1}\"\nmetric = \"m\"\n";

/// Tasks that wait for their confirm.
struct Publication {
    tasks: Vec<NewTask>,
    confirm: oneshot::Sender<()>,
}

/// Passes each publication to the test, which confirms it.
struct HeldPublisher(mpsc::UnboundedSender<Publication>);

impl TaskSender for HeldPublisher {
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        let (confirm, confirmed) = oneshot::channel();
        let sent = self.0.send(Publication { tasks, confirm });
        Box::pin(async move {
            sent.expect("the test receives publications");
            confirmed.await.map_err(|_| PublishError::InDoubt("the test did not confirm".to_owned()))
        })
    }
}

/// The broker's side of a connection.
struct Session {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Session {
    async fn packet(&mut self) -> io::Result<Packet> {
        loop {
            if let Ok(packet) = Packet::read(&mut self.buffer, 10_000) {
                return Ok(packet);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn send(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        packet.write(&mut bytes, 10_000).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn publish(&mut self, payload: &str, id: u16, dup: bool) {
        let qos = if id == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let mut publish = Publish::new("n/a", qos, payload);
        (publish.pkid, publish.dup) = (id, dup);
        self.send(Packet::Publish(publish)).await;
    }

    async fn acknowledged(&mut self) -> u16 {
        match self.packet().await.unwrap() {
            Packet::PubAck(PubAck { pkid }) => pkid,
            other => panic!("{other:?}"),
        }
    }
}

struct Scene {
    listener: TcpListener,
    publications: mpsc::UnboundedReceiver<Publication>,
    stop: CancellationToken,
    bridge: TaskHandle<Result<(), ConnectError>>,
    instruments: Instruments,
}

impl Scene {
    async fn new(change: impl FnOnce(&mut MqttSettings)) -> Self {
        Self::with(change, SpoolingSender::direct).await
    }

    /// A bridge that stores with what `spooling` makes of the publisher.
    async fn with(
        change: impl FnOnce(&mut MqttSettings),
        spooling: impl FnOnce(Arc<dyn TaskSender>) -> SpoolingSender,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("mqtt://{}", listener.local_addr().unwrap()).parse().unwrap();
        let mut settings = MqttSettings { subscribe: vec!["n/#".to_owned()], ..MqttSettings::default() };
        change(&mut settings);
        let (sender, publications) = mpsc::unbounded_channel();
        let spooling = spooling(Arc::new(HeldPublisher(sender)));
        let store = Store::new(spooling, "test".to_owned());
        let map = Map::parse("test", MAP).unwrap();
        let kind = Kind::parse("reading.process").unwrap();
        let instruments = Instruments::register(&Metrics::new("mqtt")).unwrap();
        let unmeasured = instruments.unmeasured.clone();
        let converter =
            Converter::new([map].into_iter().collect(), kind, false, Limits::default(), unmeasured);
        let mut bridge =
            Bridge::new(url, settings, "bridge".to_owned(), converter, store, instruments.clone());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = async move { bridge.run(&stopped, Duration::from_secs(5)).await };
        let bridge = supervise::isolated("bridge", running).spawn();
        Self { listener, publications, stop, bridge, instruments }
    }

    /// Accepts the bridge's next connection, and its subscription unless it has one.
    async fn session(&self, present: bool) -> Session {
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut session = Session { stream, buffer: BytesMut::new() };
        let Packet::Connect(connect) = session.packet().await.unwrap() else { panic!("no CONNECT") };
        assert!(!connect.clean_session);
        session.send(Packet::ConnAck(ConnAck::new(ConnectReturnCode::Success, present))).await;
        if !present {
            let Packet::Subscribe(subscribe) = session.packet().await.unwrap() else {
                panic!("no SUBSCRIBE")
            };
            let codes = vec![SubscribeReasonCode::Success(QoS::AtLeastOnce)];
            session.send(Packet::SubAck(SubAck::new(subscribe.pkid, codes))).await;
        }
        session
    }

    async fn publication(&mut self) -> Publication {
        self.publications.recv().await.expect("the bridge runs")
    }
}

#[tokio::test]
async fn messages_are_acknowledged_after_their_confirms_in_the_order_of_arrival() {
    let mut scene = Scene::new(|_| ()).await;
    let mut session = scene.session(false).await;
    session.publish("1", 7, false).await;
    session.publish("2", 8, false).await;
    session.publish("3", 0, false).await;
    let (first, second) = (scene.publication().await, scene.publication().await);
    let third = scene.publication().await;
    second.confirm.send(()).unwrap();
    third.confirm.send(()).unwrap();
    let early = session.stream.try_read(&mut [0; 16]);
    assert_eq!(early.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    first.confirm.send(()).unwrap();
    assert_eq!((session.acknowledged().await, session.acknowledged().await), (7, 8));
}

#[tokio::test]
async fn messages_and_letters_are_acknowledged_from_the_spool_while_the_broker_does_not_confirm() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), SpoolConfig { min_free: Size::mib(0), ..Default::default() });
    let spool = spool.await.unwrap();
    let opened = spool.clone();
    let with_spool = |direct| SpoolingSender::with_spool(direct, opened, Duration::from_secs(60));
    let mut scene = Scene::with(|_| (), with_spool).await;
    let mut session = scene.session(false).await;
    session.publish("1", 7, false).await;
    let first = scene.publication().await;
    session.publish("no number", 8, false).await;
    let second = scene.publication().await;
    drop(second.confirm);
    spool.status().wait_for(|status| status.accepted == 1).await.unwrap();
    let early = session.stream.try_read(&mut [0; 16]);
    assert_eq!(early.unwrap_err().kind(), io::ErrorKind::WouldBlock, "the first message is not stored");
    drop(first.confirm);
    assert_eq!((session.acknowledged().await, session.acknowledged().await), (7, 8));
    // Behind the spool, although the broker would confirm again.
    session.publish("3", 9, false).await;
    assert_eq!(session.acknowledged().await, 9);
    assert!(scene.publications.try_recv().is_err());
    let records = spool.read(0, 10, 1 << 20).await.unwrap().records;
    let ids: Vec<_> = records.iter().map(|record| record.id.as_str()).collect();
    assert_eq!(ids[..2], [second.tasks[0].id.as_str(), first.tasks[0].id.as_str()]);
    assert_eq!((ids.len(), second.tasks[0].kind.as_str()), (3, "mqtt.message"));
}

#[tokio::test]
async fn a_message_that_comes_again_on_the_next_connection_has_the_same_ids_and_one_acknowledgement() {
    let mut scene = Scene::new(|_| ()).await;
    let mut session = scene.session(false).await;
    session.publish("1", 7, false).await;
    let lost = scene.publication().await;
    drop(session);

    let mut session = scene.session(true).await;
    session.publish("1", 7, true).await;
    session.publish("2", 8, false).await;
    let (again, next) = (scene.publication().await, scene.publication().await);
    assert_eq!(again.tasks[0].id, lost.tasks[0].id);
    assert_eq!(again.tasks[0].body, lost.tasks[0].body, "the time of the first arrival");
    for publication in [lost, again, next] {
        publication.confirm.send(()).unwrap();
    }
    assert_eq!((session.acknowledged().await, session.acknowledged().await), (7, 8));
    drop(session);

    // The broker lost the session: its packet ids begin again.
    let mut session = scene.session(false).await;
    session.publish("1", 7, true).await;
    let other = scene.publication().await;
    other.confirm.send(()).unwrap();
    assert_eq!(session.acknowledged().await, 7);
}

#[tokio::test]
async fn packet_ids_of_another_session_are_other_messages() {
    let mut scene = Scene::new(|_| ()).await;
    let mut session = scene.session(false).await;
    session.publish("1", 7, false).await;
    let first = scene.publication().await;
    drop(session);
    let mut session = scene.session(false).await;
    session.publish("1", 7, true).await;
    let second = scene.publication().await;
    assert_ne!(second.tasks[0].id, first.tasks[0].id);
}

#[tokio::test]
async fn no_more_messages_are_read_than_may_be_in_flight() {
    let mut scene = Scene::new(|settings| settings.in_flight = 2).await;
    let mut session = scene.session(false).await;
    for id in 1..=3 {
        session.publish("1", id, false).await;
    }
    let (first, _second) = (scene.publication().await, scene.publication().await);
    assert_eq!(scene.instruments.in_flight.get(), 2);
    assert!(scene.publications.try_recv().is_err());
    first.confirm.send(()).unwrap();
    assert_eq!(session.acknowledged().await, 1);
    let _third = scene.publication().await;
}

#[tokio::test]
async fn a_stop_waits_for_confirms_acknowledges_and_disconnects() {
    let mut scene = Scene::new(|_| ()).await;
    let mut session = scene.session(false).await;
    session.publish("1", 7, false).await;
    let publication = scene.publication().await;
    scene.stop.cancel();
    publication.confirm.send(()).unwrap();
    assert_eq!(session.acknowledged().await, 7);
    assert_eq!(session.packet().await.unwrap(), Packet::Disconnect);
    // A broker closes the connection then.
    drop(session);
    scene.bridge.await.unwrap().unwrap();
}

#[tokio::test]
async fn retained_messages_are_acknowledged_and_not_stored() {
    let mut scene = Scene::new(|_| ()).await;
    let mut session = scene.session(false).await;
    let mut publish = Publish::new("n/a", QoS::AtLeastOnce, "1");
    (publish.pkid, publish.retain) = (7, true);
    session.send(Packet::Publish(publish)).await;
    assert_eq!(session.acknowledged().await, 7);
    assert!(scene.publications.try_recv().is_err());
}

#[tokio::test]
async fn a_refused_first_subscription_ends_the_bridge_with_the_filter() {
    let scene = Scene::new(|_| ()).await;
    let (stream, _) = scene.listener.accept().await.unwrap();
    let mut session = Session { stream, buffer: BytesMut::new() };
    session.packet().await.unwrap();
    session.send(Packet::ConnAck(ConnAck::new(ConnectReturnCode::Success, false))).await;
    session.packet().await.unwrap();
    session.send(Packet::SubAck(SubAck::new(1, vec![SubscribeReasonCode::Failure]))).await;
    let error = scene.bridge.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("refused to subscribe to \"n/#\""), "{error}");
}
