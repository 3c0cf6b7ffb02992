//! MQTT 3.1.1.

use bytes::{Bytes, BytesMut};
use rumqttc::mqttbytes::{
    QoS,
    v4::{
        Connect, ConnectReturnCode, Login, Packet, Publish, Subscribe, SubscribeFilter, SubscribeReasonCode,
    },
};

use super::{Hello, Incoming, Message, ProtocolError, SUBSCRIBE_ID, Welcome};

pub(super) fn connect(hello: &Hello) -> Result<BytesMut, ProtocolError> {
    let mut connect = Connect::new(hello.client_id.clone());
    connect.clean_session = hello.clean;
    connect.keep_alive = hello.keep_alive.as_secs().try_into().unwrap_or(u16::MAX);
    connect.login = hello.login.clone().map(|(user, password)| Login::new(user, password));
    written(&Packet::Connect(connect))
}

pub(super) fn subscribe(filters: &[String]) -> Result<BytesMut, ProtocolError> {
    let filters = filters.iter().map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
    let mut subscribe = Subscribe::new_many(filters);
    subscribe.pkid = SUBSCRIBE_ID;
    written(&Packet::Subscribe(subscribe))
}

pub(super) fn publish(topic: &str, payload: &Bytes, packet_id: u16) -> Result<BytesMut, ProtocolError> {
    let mut publish = Publish::from_bytes(topic, QoS::AtLeastOnce, payload.clone());
    publish.pkid = packet_id;
    written(&Packet::Publish(publish))
}

fn written(packet: &Packet) -> Result<BytesMut, ProtocolError> {
    let mut out = BytesMut::new();
    packet.write(&mut out, usize::MAX).map_err(|error| ProtocolError::new(format!("{error:?}")))?;
    Ok(out)
}

pub(super) fn read(mut packet: BytesMut) -> Result<Incoming, ProtocolError> {
    let packet = Packet::read(&mut packet, usize::MAX);
    match packet.map_err(|error| ProtocolError::new(format!("{error:?}")))? {
        Packet::ConnAck(answer) => Ok(match answer.code {
            ConnectReturnCode::Success => Incoming::Connected(Welcome {
                session_present: answer.session_present,
                keep_alive: None,
                shared_subscriptions: true,
            }),
            code => Incoming::Refused {
                reason: format!("{code:?}"),
                denied: matches!(
                    code,
                    ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized
                ),
            },
        }),
        Packet::Publish(publish) => message(publish),
        Packet::SubAck(answer) => {
            let refused = |code: &SubscribeReasonCode| match code {
                SubscribeReasonCode::Success(_) => None,
                SubscribeReasonCode::Failure => Some("no reason given".to_owned()),
            };
            Ok(Incoming::Subscribed(answer.return_codes.iter().map(refused).collect()))
        }
        Packet::PubAck(ack) => Ok(Incoming::Published { packet_id: ack.pkid, refused: None }),
        Packet::PingResp => Ok(Incoming::Pong),
        other => Err(ProtocolError::new(format!("unexpected packet {other:?}"))),
    }
}

fn message(publish: Publish) -> Result<Incoming, ProtocolError> {
    let packet_id = match publish.qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(publish.pkid),
        QoS::ExactlyOnce => return Err(ProtocolError::new("a message with QoS 2, and 1 was asked for")),
    };
    Ok(Incoming::Message(Message {
        topic: publish.topic,
        payload: publish.payload,
        packet_id,
        dup: publish.dup,
        retain: publish.retain,
        content_type: None,
    }))
}
