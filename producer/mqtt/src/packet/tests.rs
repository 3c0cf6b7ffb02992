use rumqttc::{
    mqttbytes::{QoS, v4},
    v5::mqttbytes as five,
};

use super::*;

fn hello() -> Hello {
    Hello {
        clean: false,
        client_id: "bridge-1".to_owned(),
        login: Some(("user".to_owned(), "secret".to_owned())),
        keep_alive: Duration::from_secs(30),
        session_expiry: Duration::from_secs(3600),
        in_flight: 7,
        max_packet: 1000,
    }
}

#[test]
fn a_persistent_session_is_asked_for_in_both_versions() {
    let v4::Packet::Connect(connect) =
        v4::Packet::read(&mut Version::V3.connect(&hello()).unwrap(), 1000).unwrap()
    else {
        panic!("no CONNECT");
    };
    assert!(!connect.clean_session);
    assert_eq!((connect.client_id.as_str(), connect.keep_alive), ("bridge-1", 30));
    assert_eq!(connect.login, Some(v4::Login::new("user", "secret")));

    let mut bytes = Version::V5.connect(&hello()).unwrap();
    let five::v5::Packet::Connect(connect, _, login) = five::v5::Packet::read(&mut bytes, None).unwrap()
    else {
        panic!("no CONNECT");
    };
    let properties = connect.properties.unwrap();
    assert!(!connect.clean_start);
    assert_eq!(properties.session_expiry_interval, Some(3600));
    assert_eq!((properties.receive_maximum, properties.max_packet_size), (Some(7), Some(1000)));
    assert_eq!(properties.topic_alias_max, None, "every message must have its topic");
    assert_eq!(login, Some(five::v5::Login::new("user", "secret")));
}

#[test]
fn filters_are_subscribed_to_with_qos_1_and_without_retained_messages() {
    let filters = ["a/+".to_owned(), "$share/g/b/#".to_owned()];
    let v4::Packet::Subscribe(subscribe) =
        v4::Packet::read(&mut Version::V3.subscribe(&filters, true).unwrap(), 1000).unwrap()
    else {
        panic!("no SUBSCRIBE");
    };
    assert!(subscribe.filters.iter().all(|filter| filter.qos == QoS::AtLeastOnce));
    let rules = |retained: bool| {
        let mut bytes = Version::V5.subscribe(&filters, retained).unwrap();
        let five::v5::Packet::Subscribe(subscribe) = five::v5::Packet::read(&mut bytes, None).unwrap() else {
            panic!("no SUBSCRIBE");
        };
        subscribe.filters.into_iter().map(|filter| filter.retain_forward_rule).collect::<Vec<_>>()
    };
    use five::v5::RetainForwardRule::{Never, OnNewSubscribe};
    assert_eq!(rules(false), [Never, Never]);
    assert_eq!(rules(true), [OnNewSubscribe, Never]);
}

#[test]
fn messages_of_both_versions_are_read_alike() {
    let mut publish = v4::Publish::new("a/b", QoS::AtLeastOnce, "21.5");
    (publish.pkid, publish.dup, publish.retain) = (9, true, true);
    let mut bytes = BytesMut::new();
    v4::Packet::Publish(publish).write(&mut bytes, 1000).unwrap();
    let expected = Message {
        topic: "a/b".to_owned(),
        payload: Bytes::from_static(b"21.5"),
        packet_id: Some(9),
        dup: true,
        retain: true,
        content_type: None,
    };
    assert_eq!(Version::V3.read(bytes), Ok(Incoming::Message(expected.clone())));

    let properties = five::v5::PublishProperties {
        content_type: Some("application/json".to_owned()),
        ..five::v5::PublishProperties::default()
    };
    let mut publish = five::v5::Publish::new("a/b", five::QoS::AtLeastOnce, "21.5", Some(properties));
    (publish.pkid, publish.dup, publish.retain) = (9, true, true);
    let mut bytes = BytesMut::new();
    five::v5::Packet::Publish(publish).write(&mut bytes, None).unwrap();
    let expected = Message { content_type: Some("application/json".to_owned()), ..expected };
    assert_eq!(Version::V5.read(bytes), Ok(Incoming::Message(expected)));
}

#[test]
fn a_message_with_qos_2_is_refused() {
    let mut publish = v4::Publish::new("a", QoS::ExactlyOnce, "1");
    publish.pkid = 1;
    let mut bytes = BytesMut::new();
    v4::Packet::Publish(publish).write(&mut bytes, 1000).unwrap();
    let refused = Version::V3.read(bytes).unwrap_err().to_string();
    assert!(refused.contains("QoS 2"), "{refused}");
}

#[test]
fn packets_without_a_library_have_the_right_bytes() {
    let mut out = BytesMut::new();
    write_puback(0x1234, &mut out);
    assert_eq!(v4::Packet::read(&mut out.clone(), 100).unwrap(), v4::Packet::PubAck(v4::PubAck::new(0x1234)));
    let ack = five::v5::Packet::read(&mut out, None).unwrap();
    assert_eq!(ack, five::v5::Packet::PubAck(five::v5::PubAck::new(0x1234, None)));
    write_ping(&mut out);
    assert_eq!(v4::Packet::read(&mut out, 100).unwrap(), v4::Packet::PingReq);
    write_disconnect(&mut out);
    assert_eq!(v4::Packet::read(&mut out, 100).unwrap(), v4::Packet::Disconnect);
}

#[test]
fn refusals_say_whether_the_login_is_the_reason() {
    let refused = |code: u8| match Version::V3.read(BytesMut::from(&[0x20, 2, 0, code][..])).unwrap() {
        Incoming::Refused { denied, .. } => denied,
        other => panic!("{other:?}"),
    };
    assert!(refused(4) && refused(5) && !refused(3));
    let answers = Version::V3.read(BytesMut::from(&[0x90, 4, 0, 1, 1, 0x80][..])).unwrap();
    let Incoming::Subscribed(answers) = answers else { panic!("{answers:?}") };
    assert_eq!((answers[0].is_none(), answers[1].is_some()), (true, true));
}

#[test]
fn a_message_is_published_with_qos_1_and_its_acknowledgement_is_read() {
    let payload = Bytes::from_static(b"21.5");
    let mut bytes = Version::V3.publish("a/b", &payload, 7).unwrap();
    let v4::Packet::Publish(publish) = v4::Packet::read(&mut bytes, 1000).unwrap() else {
        panic!("no PUBLISH");
    };
    assert_eq!((publish.topic.as_str(), &publish.payload[..], publish.pkid), ("a/b", &b"21.5"[..], 7));
    assert_eq!(publish.qos, QoS::AtLeastOnce);
    let mut bytes = Version::V5.publish("a/b", &payload, 7).unwrap();
    let five::v5::Packet::Publish(publish) = five::v5::Packet::read(&mut bytes, None).unwrap() else {
        panic!("no PUBLISH");
    };
    assert_eq!((&publish.topic[..], publish.pkid), (&b"a/b"[..], 7));
    assert!(Version::V3.publish(&"t".repeat(MAX_TOPIC + 1), &payload, 1).is_err());

    let accepted = Incoming::Published { packet_id: 7, refused: None };
    let puback = |rest: &[u8]| BytesMut::from(&[&[PUBACK], rest].concat()[..]);
    assert_eq!(Version::V3.read(puback(&[2, 0, 7])), Ok(accepted.clone()));
    assert_eq!(Version::V5.read(puback(&[2, 0, 7])), Ok(accepted.clone()));
    // No matching subscribers, and not authorized.
    assert_eq!(Version::V5.read(puback(&[4, 0, 7, 0x10, 0])), Ok(accepted));
    let refused = Some("NotAuthorized".to_owned());
    assert_eq!(
        Version::V5.read(puback(&[4, 0, 7, 0x87, 0])),
        Ok(Incoming::Published { packet_id: 7, refused })
    );
}
