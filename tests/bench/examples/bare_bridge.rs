//! The smallest bridge with the client libraries of Garenne's: it subscribes with QoS 1, publishes each payload as it is
//! with a confirm, and acknowledges in order.
//!
//! `bare_bridge --mqtt-port PORT --client-id ID --subscribe FILTER --amqp-url URL --queue QUEUE --count N`; it prints
//! `subscribed`, and `done` when it has acknowledged N messages and the MQTT
//! broker has closed the connection.

use anyhow::{Context, Result, ensure};
use garenne_bench::{number, option};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Outgoing, Packet, Publish, QoS};
use tokio::sync::mpsc;

/// Most unconfirmed messages, as the bridge has by default.
const IN_FLIGHT: usize = 256;
/// Room for acknowledgements that are not sent yet: one for each packet id, because nothing sends them while a message
/// waits for its turn to be published.
const ACKNOWLEDGEMENTS: usize = u16::MAX as usize;

/// A message whose confirm is awaited.
type Unconfirmed = (PublisherConfirm, Publish);

// One thread is cheaper than several; the AMQP client has its own thread for its socket.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let given = |name| option(name).with_context(|| format!("{name} is missing"));
    let connection = Connection::connect(&given("--amqp-url")?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let count = number("--count", 0).map_err(anyhow::Error::msg)?;
    let mut options = MqttOptions::new(given("--client-id")?, "127.0.0.1", given("--mqtt-port")?.parse()?);
    options.set_clean_session(false).set_manual_acks(true);
    let (client, mut events) = AsyncClient::new(options, ACKNOWLEDGEMENTS);
    client.subscribe(given("--subscribe")?, QoS::AtLeastOnce).await?;
    let (unconfirmed, confirming) = mpsc::channel(IN_FLIGHT);
    tokio::try_join!(
        receive(&mut events, &channel, given("--queue")?.into(), unconfirmed, count),
        acknowledge(confirming, &client)
    )?;
    // The broker has read all acknowledgements before it closes the connection.
    client.disconnect().await?;
    while events.poll().await.is_ok() {}
    println!("done");
    std::future::pending().await
}

/// Publishes each message, until it has acknowledged so many.
async fn receive(
    events: &mut EventLoop,
    channel: &Channel,
    queue: ShortString,
    unconfirmed: mpsc::Sender<Unconfirmed>,
    mut unacknowledged: usize,
) -> Result<()> {
    let properties = BasicProperties::default().with_delivery_mode(2);
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    while unacknowledged > 0 {
        match events.poll().await? {
            Event::Incoming(Packet::SubAck(_)) => println!("subscribed"),
            Event::Incoming(Packet::Publish(message)) => {
                let (exchange, properties) = (ShortString::default(), properties.clone());
                let sent =
                    channel.basic_publish(exchange, queue.clone(), options, &message.payload, properties);
                unconfirmed.send((sent.await?, message)).await?;
            }
            Event::Outgoing(Outgoing::PubAck(_)) => unacknowledged -= 1,
            _ => {}
        }
    }
    Ok(())
}

/// Acknowledges the messages in the order of their arrival.
async fn acknowledge(mut confirming: mpsc::Receiver<Unconfirmed>, client: &AsyncClient) -> Result<()> {
    while let Some((confirm, message)) = confirming.recv().await {
        let confirmation = confirm.await?;
        ensure!(confirmation == Confirmation::Ack(None), "not stored: {confirmation:?}");
        client.ack(&message).await?;
    }
    Ok(())
}
