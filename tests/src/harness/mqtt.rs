//! MQTT: a broker, a sender, and the bridge `garenne-producer mqtt`.

use std::{env, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Outgoing, Packet, QoS};
use tokio::{net::TcpStream, time::timeout};

use super::{
    broker::{self, Broker, BrokerOptions},
    engine::{self, Mode},
    port,
    process::{Ended, Process, Program, Signal},
    readiness, suite,
    test_env::{DELAYS, TestEnv},
    users,
    wait::{Seen, WAIT_TIMEOUT, eventually},
};

/// Debian's path, which is not in every user's `PATH`.
const MOSQUITTO: &str = "/usr/sbin/mosquitto";

/// The largest packet of a sender.
const MAX_PACKET: usize = 16 << 20;

/// Debian's path of the command that publishes.
const MOSQUITTO_PUB: &str = "/usr/bin/mosquitto_pub";

fn is_left_out() -> bool {
    env::var("GARENNE_TEST_WITHOUT").is_ok_and(|list| list.split(',').any(|name| name.trim() == "mosquitto"))
}

/// Whether Mosquitto is installed. If it is not, the test is left out.
pub fn is_installed() -> bool {
    let installed = !is_left_out() && Path::new(MOSQUITTO).exists();
    if !installed {
        suite::leave_out("no mosquitto is installed (apt-get install mosquitto)");
    }
    installed
}

/// A mosquitto as a process. It keeps its port and its sessions when it is stopped and started again.
#[derive(Debug)]
pub struct Mosquitto {
    process: Option<Process>,
    program: Program,
    port: u16,
    tls_port: u16,
}

impl Mosquitto {
    /// Starts one that keeps its files in `folder`. With `tls`, the configuration of its certificates, it has another
    /// listener. `None` if it is not installed, and then the test is left out.
    pub async fn start(folder: &Path, tls: Option<&str>) -> Result<Option<Self>> {
        if !is_installed() {
            return Ok(None);
        }
        suite::time_this_test();
        let (port, tls_port) = (port::free_port()?, port::free_port()?);
        let folder = folder.display();
        let mut config = format!(
            "allow_anonymous true\npersistence true\npersistence_location {folder}/\nmax_queued_messages 0\nuser root\n\
             listener {port} 127.0.0.1\n"
        );
        if let Some(tls) = tls {
            config += &format!("listener {tls_port} 127.0.0.1\n{tls}\n");
        }
        let file = format!("{folder}/mosquitto.conf");
        std::fs::write(&file, config)?;
        let program = Program::foreign(MOSQUITTO).arg("-c").arg(file);
        let mut server = Self { process: None, program, port, tls_port };
        server.restart().await?;
        Ok(Some(server))
    }

    /// Starts it again after [`stop`](Self::stop).
    pub async fn restart(&mut self) -> Result<()> {
        let process = self.process.insert(self.program.start().await?);
        let port = self.port;
        eventually("mosquitto listens", async || {
            if let Err(ended) = process.check_alive() {
                return Ok(Seen::Never(format!("{ended:#}")));
            }
            TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(Seen::Wanted(()))
        })
        .await
    }

    /// Stops it. It writes its sessions to disk.
    pub async fn stop(&mut self) -> Result<()> {
        let process = self.process.take().context("it runs")?;
        process.signal(Signal::TERM)?;
        process.ended().await.map(drop)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// The URL of its listener with TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("mqtts://127.0.0.1:{}", self.tls_port)
    }
}

/// A broker whose MQTT plugin publishes to `garenne.mqtt`. `None` if the test is left out.
pub async fn with_plugin() -> Result<Option<TestEnv>> {
    if engine::mode().await == Mode::Process {
        suite::leave_out("a broker with MQTT runs in a container only");
        return Ok(None);
    }
    let conf = vec!["mqtt.exchange = garenne.mqtt".to_owned()];
    let broker = Broker::start(BrokerOptions { mqtt: true, conf, ..BrokerOptions::default() }).await?;
    TestEnv::on(&broker).await.map(Some)
}

/// Publishes with `mosquitto_pub`, as the user `guest` of a virtual host, through RabbitMQ's MQTT plugin.
#[derive(Clone, Debug)]
pub struct MosquittoPub(Program);

impl MosquittoPub {
    /// `None` if it is not installed, and then the test is left out.
    pub fn find(env: &TestEnv) -> Result<Option<Self>> {
        if is_left_out() || !Path::new(MOSQUITTO_PUB).exists() {
            suite::leave_out("no mosquitto_pub is installed (apt-get install mosquitto-clients)");
            return Ok(None);
        }
        let url = env.vhost().broker().mqtt_url().context("MQTT is enabled")?;
        let port = url.rsplit(':').next().context("a port")?;
        let user = format!("{}:{}", env.vhost().name(), broker::USER);
        Ok(Some(
            Self(Program::foreign(MOSQUITTO_PUB).option("-h", "127.0.0.1").option("-p", port))
                .user(&user, broker::USER),
        ))
    }

    /// As another user, such as `vhost:name`.
    #[must_use]
    pub fn user(self, user: &str, password: &str) -> Self {
        Self(self.0.option("-u", user).option("-P", password))
    }

    /// Publishes a message with this version of the protocol (`311` or `5`), and with further arguments such as a QoS.
    pub async fn publish(&self, version: &str, topic: &str, payload: &str, more: &[&str]) -> Result<()> {
        let more = [&["-m", payload], more].concat();
        let ended = self.run(version, topic, &more).await?;
        ensure!(
            ended.code == Some(0) && ended.stderr.is_empty(),
            "{topic}: {:?}: {:?}",
            ended.code,
            ended.stderr
        );
        Ok(())
    }

    /// Publishes with arguments that say what, which may fail.
    pub async fn run(&self, version: &str, topic: &str, arguments: &[&str]) -> Result<Ended> {
        let version = if version == "5" { "mqttv5" } else { version };
        self.0.clone().option("-V", version).option("-t", topic).args(arguments).run().await
    }
}

/// A device that publishes with QoS 1.
pub struct Sender {
    client: AsyncClient,
    events: EventLoop,
}

impl Sender {
    /// Connects to `mqtt://[user:password@]host:port`.
    pub async fn connect(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("mqtt://").context("mqtt://")?;
        let (login, address) =
            rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (host, port) = address.rsplit_once(':').context("a port")?;
        let id = format!("sender-{}", uuid::Uuid::new_v4().simple());
        let mut options = MqttOptions::new(id, host, port.parse()?);
        options.set_max_packet_size(MAX_PACKET, MAX_PACKET);
        if let Some((user, password)) = login.and_then(|login| login.split_once(':')) {
            options.set_credentials(user, password);
        }
        let (client, mut events) = AsyncClient::new(options, 10);
        match timeout(WAIT_TIMEOUT, events.poll()).await?? {
            Event::Incoming(Packet::ConnAck(_)) => Ok(Self { client, events }),
            other => bail!("{other:?}"),
        }
    }

    /// Publishes a message. If it succeeds, the broker has accepted it.
    pub async fn publish(&mut self, topic: &str, payload: impl Into<Vec<u8>>) -> Result<()> {
        self.send(topic, payload.into(), false).await
    }

    /// Publishes a message that the broker keeps for later subscriptions.
    pub async fn retain(&mut self, topic: &str, payload: impl Into<Vec<u8>>) -> Result<()> {
        self.send(topic, payload.into(), true).await
    }

    async fn send(&mut self, topic: &str, payload: Vec<u8>, retain: bool) -> Result<()> {
        self.client.publish(topic, QoS::AtLeastOnce, retain, payload).await?;
        let mut sent = None;
        let acknowledged = async {
            loop {
                match self.events.poll().await? {
                    Event::Outgoing(Outgoing::Publish(id)) => sent = Some(id),
                    Event::Incoming(Packet::PubAck(ack)) if Some(ack.pkid) == sent => return anyhow::Ok(()),
                    _ => {}
                }
            }
        };
        timeout(Duration::from_secs(10), acknowledged).await?
    }
}

/// A bridge to start. It can be started repeatedly.
#[derive(Clone, Debug)]
pub struct BridgePlan(Program);

impl BridgePlan {
    /// A bridge from this MQTT broker to the test environment's virtual host, with only the permissions that it needs.
    /// The topology must exist.
    pub async fn new(env: &TestEnv, mqtt_url: &str) -> Result<Self> {
        Ok(Self::at(&users::user(env.vhost(), "bridge").await?, mqtt_url))
    }

    /// A bridge with this URL of the AMQP broker.
    #[must_use]
    pub fn at(amqp_url: &str, mqtt_url: &str) -> Self {
        let program = Program::new("garenne-producer")
            .arg("mqtt")
            .option("--amqp-url", amqp_url)
            .option("--admin", "127.0.0.1:0")
            .option("--url", mqtt_url)
            .env("GARENNE_MQTT__CLIENT_ID", "bridge")
            .env("GARENNE_RETRY__DELAYS", DELAYS);
        Self(program)
    }

    /// Publishes each reading as a message of its own, so that a worker's receipt counts readings.
    #[must_use]
    pub fn ungrouped(self) -> Self {
        self.env("GARENNE_GROUP_COMMIT__RECORDS", "1")
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        Self(self.0.option(name, value))
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(self, name: &str, value: &str) -> Self {
        Self(self.0.env(name, value))
    }

    /// Runs it to its end.
    pub async fn run(&self) -> Result<Ended> {
        self.0.run().await
    }

    /// Starts it and waits until its admin port is open.
    pub async fn begin(&self) -> Result<Bridge> {
        let process = self.0.start().await?;
        let admin = process.stderr().until("the admin port's address", |lines| {
            let line = lines.iter().find(|line| line.contains("admin port is open"))?;
            Some(line.rsplit("address=").next()?.trim().to_owned())
        });
        let admin = format!("http://{}", admin.await?);
        Ok(Bridge { process, admin, http: reqwest::Client::new() })
    }

    /// Starts it and waits until it is ready.
    pub async fn start(&self) -> Result<Bridge> {
        let mut bridge = self.begin().await?;
        bridge.until_ready(true).await?;
        Ok(bridge)
    }
}

/// A running bridge. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Bridge {
    process: Process,
    admin: String,
    http: reqwest::Client,
}

impl Bridge {
    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits until `/readyz` answers that it is ready, or that it is not.
    pub async fn until_ready(&mut self, ready: bool) -> Result<()> {
        readiness::until_ready(&mut self.process, (&self.http, &self.admin), "the bridge", ready).await
    }

    /// Waits until `/readyz` answers that it is not ready, with a reason that contains `reason`.
    pub async fn until_not_ready_for(&self, reason: &str) -> Result<()> {
        readiness::until_not_ready_for((&self.http, &self.admin), "the bridge", reason).await
    }

    /// The sum of a metric over all series whose line has `label`; 0 if there is none.
    pub async fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let text = self.http.get(format!("{}/metrics", self.admin)).send().await?.text().await?;
        let series = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
        });
        series.map(|line| Ok(line.rsplit(' ').next().context("a value")?.parse::<f64>()?)).sum()
    }

    /// Waits until the metric has at least this value.
    pub async fn until_metric(&self, name: &str, label: &str, least: f64) -> Result<()> {
        eventually(format!("{name}{{{label}}} is at least {least}"), async || {
            let value = self.metric(name, label).await?;
            Ok(Seen::when(value >= least, value))
        })
        .await
    }

    /// Sends SIGTERM and waits for a clean end.
    pub async fn stop(self) -> Result<Ended> {
        self.process.signal(Signal::TERM)?;
        let ended = self.process.ended().await?;
        ensure!(ended.code == Some(0), "{:?}: {:?}", ended.code, ended.stderr);
        Ok(ended)
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(self) -> Result<Ended> {
        self.process.kill().await
    }
}
