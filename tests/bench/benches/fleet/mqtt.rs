//! Mosquitto: a process, its persistent sessions, and publishing to it.

use std::{
    io,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions, Packet, QoS, StateError};
use tokio::{
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::{MissedTickBehavior, interval, timeout},
};

/// Debian's path, which is not in every user's `PATH`.
const MOSQUITTO: &str = "/usr/sbin/mosquitto";
const MQTT_TIMEOUT: Duration = Duration::from_secs(60);
/// Most messages that the publisher has not acknowledged.
const UNACKNOWLEDGED: u16 = 1000;
/// How often a publisher with a rate sends.
const TICK: Duration = Duration::from_millis(1);
/// The last message of a session, which shows that nothing waits before it.
const END: &str = "zigbee2mqtt/end-of-session";

/// A running Mosquitto. It is killed when the value is dropped.
pub(crate) struct Mosquitto {
    _process: Child,
    port: u16,
}

impl Mosquitto {
    /// Its version, such as `2.0.11`.
    pub(crate) async fn version() -> Result<String> {
        let help = Command::new(MOSQUITTO).arg("-h").output().await.context(MOSQUITTO)?;
        let help = String::from_utf8_lossy(&help.stdout);
        let version = help.split_whitespace().nth(2).context("the help names no version")?;
        Ok(version.to_owned())
    }

    /// Starts one that sends a client at most `in_flight` messages without a PUBACK, and keeps all others for it.
    pub(crate) async fn start(in_flight: u16) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let file = std::env::temp_dir().join(format!("garenne-bench-mosquitto-{port}.conf"));
        let settings = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages {in_flight}\n"
        );
        std::fs::write(&file, settings)?;
        let process = Command::new(MOSQUITTO)
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context(MOSQUITTO)?;
        let until = Instant::now() + MQTT_TIMEOUT;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            ensure!(Instant::now() < until, "mosquitto does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // It has read the file.
        std::fs::remove_file(&file)?;
        Ok(Self { _process: process, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Opens a persistent session with a subscription, without a client that is connected.
    pub(crate) async fn open_session(&self, client_id: &str, filter: &str) -> Result<()> {
        let (client, mut events) = self.client(client_id, false);
        client.subscribe(filter, QoS::AtLeastOnce).await?;
        until(&mut events, |packet| matches!(packet, Packet::SubAck(_)).then_some(())).await?;
        disconnect(&client, events).await
    }

    /// Checks that the session has no message that is unacknowledged or was not sent, and ends it.
    pub(crate) async fn close_session(&self, client_id: &str) -> Result<()> {
        self.publish([(END.to_owned(), Vec::new())].into_iter(), None).await?;
        let (client, mut events) = self.client(client_id, false);
        let topic = until(&mut events, |packet| match packet {
            Packet::Publish(message) => Some(message.topic),
            _ => None,
        });
        let topic = topic.await?;
        ensure!(topic == END, "a message to {topic} was not acknowledged");
        disconnect(&client, events).await?;
        let (client, mut events) = self.client(client_id, true);
        until(&mut events, |packet| matches!(packet, Packet::ConnAck(_)).then_some(())).await?;
        disconnect(&client, events).await
    }

    /// Publishes with QoS 1, at most `rate` messages a second, and waits until all are acknowledged.
    pub(crate) async fn publish(
        &self,
        messages: impl ExactSizeIterator<Item = (String, Vec<u8>)>,
        rate: Option<f64>,
    ) -> Result<()> {
        let count = messages.len();
        let (client, mut events) = self.client("garenne-bench-devices", true);
        let sending = async {
            let (mut tick, mut sent, began) = (interval(TICK), 0_usize, Instant::now());
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for (topic, payload) in messages {
                while rate.is_some_and(|rate| sent as f64 > began.elapsed().as_secs_f64() * rate) {
                    tick.tick().await;
                }
                client.publish(topic, QoS::AtLeastOnce, false, payload).await?;
                sent += 1;
            }
            anyhow::Ok(())
        };
        let acknowledged = async {
            let mut left = count;
            while left > 0 {
                left -= usize::from(matches!(events.poll().await?, Event::Incoming(Packet::PubAck(_))));
            }
            anyhow::Ok(())
        };
        tokio::try_join!(sending, acknowledged)?;
        disconnect(&client, events).await
    }

    fn client(&self, id: &str, clean: bool) -> (AsyncClient, EventLoop) {
        let mut options = MqttOptions::new(id, "127.0.0.1", self.port);
        options.set_clean_session(clean).set_inflight(UNACKNOWLEDGED);
        AsyncClient::new(options, usize::from(UNACKNOWLEDGED))
    }
}

/// Waits for a packet for which `wanted` has a value.
async fn until<T>(events: &mut EventLoop, wanted: impl Fn(Packet) -> Option<T>) -> Result<T> {
    let wanted = async {
        loop {
            if let Event::Incoming(packet) = events.poll().await?
                && let Some(value) = wanted(packet)
            {
                return anyhow::Ok(value);
            }
        }
    };
    timeout(MQTT_TIMEOUT, wanted).await.context("mosquitto does not answer")?
}

/// Waits until the broker has closed the connection.
async fn disconnect(client: &AsyncClient, mut events: EventLoop) -> Result<()> {
    client.disconnect().await?;
    let closed = async {
        loop {
            match events.poll().await {
                Ok(_) => {}
                Err(ConnectionError::MqttState(StateError::ConnectionAborted)) => return Ok(()),
                Err(ConnectionError::MqttState(StateError::Io(error)))
                    if error.kind() == io::ErrorKind::ConnectionReset =>
                {
                    return Ok(());
                }
                Err(error) => bail!(error),
            }
        }
    };
    timeout(MQTT_TIMEOUT, closed).await.context("mosquitto does not close the connection")?
}
