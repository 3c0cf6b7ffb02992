//! MQTT 5.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rumqttc::v5::mqttbytes::{
    QoS,
    v5::{
        Connect, ConnectProperties, ConnectReturnCode, Filter, Login, Packet, PubAckReason, Publish,
        RetainForwardRule, Subscribe, SubscribeReasonCode,
    },
};

use super::{Hello, Incoming, Message, ProtocolError, SUBSCRIBE_ID, Welcome};

pub(super) fn connect(hello: &Hello) -> Result<BytesMut, ProtocolError> {
    let mut properties = ConnectProperties::new();
    properties.session_expiry_interval = Some(hello.session_expiry.as_secs().try_into().unwrap_or(u32::MAX));
    properties.receive_maximum = Some(hello.in_flight);
    properties.max_packet_size = Some(hello.max_packet.try_into().unwrap_or(u32::MAX));
    let connect = Connect {
        keep_alive: hello.keep_alive.as_secs().try_into().unwrap_or(u16::MAX),
        client_id: hello.client_id.clone(),
        clean_start: hello.clean,
        properties: Some(properties),
    };
    let login = hello.login.clone().map(|(user, password)| Login::new(user, password));
    written(&Packet::Connect(connect, None, login))
}

pub(super) fn subscribe(filters: &[String], retained: bool) -> Result<BytesMut, ProtocolError> {
    let filters = filters.iter().map(|path| {
        let mut filter = Filter::new(path.clone(), QoS::AtLeastOnce);
        // A shared subscription never gets retained messages, and asking for them is an error.
        filter.retain_forward_rule = match retained && !path.starts_with("$share/") {
            true => RetainForwardRule::OnNewSubscribe,
            false => RetainForwardRule::Never,
        };
        filter
    });
    let mut subscribe = Subscribe::new_many(filters, None);
    subscribe.pkid = SUBSCRIBE_ID;
    written(&Packet::Subscribe(subscribe))
}

pub(super) fn publish(topic: &str, payload: &Bytes, packet_id: u16) -> Result<BytesMut, ProtocolError> {
    let mut publish = Publish::new(topic, QoS::AtLeastOnce, payload.clone(), None);
    publish.pkid = packet_id;
    written(&Packet::Publish(publish))
}

fn written(packet: &Packet) -> Result<BytesMut, ProtocolError> {
    let mut out = BytesMut::new();
    packet.write(&mut out, None).map_err(|error| ProtocolError::new(format!("{error:?}")))?;
    Ok(out)
}

pub(super) fn read(mut packet: BytesMut) -> Result<Incoming, ProtocolError> {
    let packet = Packet::read(&mut packet, None);
    match packet.map_err(|error| ProtocolError::new(format!("{error:?}")))? {
        Packet::ConnAck(answer) => {
            let properties = answer.properties;
            Ok(match answer.code {
                ConnectReturnCode::Success => Incoming::Connected(Welcome {
                    session_present: answer.session_present,
                    keep_alive: properties
                        .as_ref()
                        .and_then(|it| it.server_keep_alive)
                        .map(|seconds| Duration::from_secs(seconds.into())),
                    shared_subscriptions: properties
                        .is_none_or(|it| it.shared_subscription_available != Some(0)),
                }),
                code => Incoming::Refused {
                    reason: with_text(code, properties.and_then(|it| it.reason_string)),
                    denied: matches!(
                        code,
                        ConnectReturnCode::BadUserNamePassword
                            | ConnectReturnCode::NotAuthorized
                            | ConnectReturnCode::Banned
                            | ConnectReturnCode::BadAuthenticationMethod
                    ),
                },
            })
        }
        Packet::Publish(publish) => message(publish),
        Packet::SubAck(answer) => {
            let refused = |code: &SubscribeReasonCode| match code {
                SubscribeReasonCode::Success(_) => None,
                code => Some(format!("{code:?}")),
            };
            Ok(Incoming::Subscribed(answer.return_codes.iter().map(refused).collect()))
        }
        Packet::PubAck(ack) => {
            // Without a subscriber the broker has accepted it too.
            let accepted = matches!(ack.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers);
            let text = ack.properties.and_then(|properties| properties.reason_string);
            let refused = (!accepted).then(|| with_text(ack.reason, text));
            Ok(Incoming::Published { packet_id: ack.pkid, refused })
        }
        Packet::PingResp(_) => Ok(Incoming::Pong),
        Packet::Disconnect(end) => {
            let text = end.properties.and_then(|properties| properties.reason_string);
            Ok(Incoming::Closing(with_text(end.reason_code, text)))
        }
        other => Err(ProtocolError::new(format!("unexpected packet {other:?}"))),
    }
}

fn with_text(code: impl std::fmt::Debug, text: Option<String>) -> String {
    match text {
        Some(text) => format!("{code:?}: {text}"),
        None => format!("{code:?}"),
    }
}

fn message(publish: Publish) -> Result<Incoming, ProtocolError> {
    let packet_id = match publish.qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(publish.pkid),
        QoS::ExactlyOnce => return Err(ProtocolError::new("a message with QoS 2, and 1 was asked for")),
    };
    // Aliases are off, so that every message has its topic.
    if publish.topic.is_empty() {
        return Err(ProtocolError::new("a message without a topic"));
    }
    let topic =
        String::from_utf8(publish.topic.to_vec()).map_err(|_| ProtocolError::new("a topic is not UTF-8"))?;
    Ok(Incoming::Message(Message {
        topic,
        payload: publish.payload,
        packet_id,
        dup: publish.dup,
        retain: publish.retain,
        content_type: publish.properties.and_then(|properties| properties.content_type),
    }))
}
