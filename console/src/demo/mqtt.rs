//! The demo's Mosquitto and its MQTT bridge.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use garenne_chaos::{Launcher, Process, free_port, metric_sum};
use tokio::time::{Instant, sleep};

/// The preferred port of Mosquitto.
const PORT: u16 = 1883;
/// The preferred admin port of the bridge.
const ADMIN_PORT: u16 = 9460;
/// Where distributions install it, which is not in every user's `PATH`.
const PROGRAMS: [&str; 2] = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"];
/// Limit of an orderly stop of Mosquitto.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for a bridge that keeps up with its messages, before Mosquitto is killed.
const CAUGHT_UP_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two looks at the bridge.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Mosquitto sends as many messages before it waits for acknowledgements. With fewer, a message is on its way to the bridge
/// before its sender gets the acknowledgement.
const MAX_INFLIGHT: u64 = 20;

/// Mosquitto and the bridge, as processes that can be killed.
pub(super) struct Mqtt {
    launcher: Launcher,
    mosquitto: Process,
    bridge: Process,
    /// Where messages are published.
    pub(super) url: String,
    /// The bridge's admin port.
    pub(super) admin: String,
    config: PathBuf,
}

impl Mqtt {
    /// Starts both.
    pub(super) fn start(launcher: Launcher) -> Result<Self> {
        let port = |preferred| free_port(preferred).context("cannot start Mosquitto and the bridge");
        let (port, admin) = (port(PORT)?, port(ADMIN_PORT)?);
        let folder = launcher.dir.join("mosquitto");
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let config = folder.join("mosquitto.conf");
        let text = config_text(port, &format!("{}/", folder.display()));
        std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let (url, admin) = (format!("mqtt://127.0.0.1:{port}"), format!("127.0.0.1:{admin}"));
        let mosquitto = start_mosquitto(&launcher, &config)?;
        let bridge = start_bridge(&launcher, &url, &admin)?;
        Ok(Self { launcher, mosquitto, bridge, url, admin: format!("http://{admin}"), config })
    }

    /// Waits until the bridge is subscribed.
    pub(super) async fn until_ready(&mut self, http: &reqwest::Client, limit: Duration) -> Result<()> {
        self.mosquitto.check()?;
        self.bridge.until_ready(http, &format!("{}/readyz", self.admin), limit).await
    }

    /// Checks that both run.
    pub(super) fn check(&mut self) -> Result<()> {
        self.mosquitto.check()?;
        self.bridge.check()
    }

    /// Kills the bridge and starts it again.
    pub(super) async fn kill_bridge(&mut self) -> Result<()> {
        self.bridge.kill().await;
        let admin = self.admin.trim_start_matches("http://").to_owned();
        self.bridge = start_bridge(&self.launcher, &self.url, &admin)?;
        Ok(())
    }

    /// Kills Mosquitto and starts it again. It writes what it accepted to its disk a moment after it acknowledged it, so it
    /// is killed while the bridge keeps up: then the messages are on their way before they are acknowledged.
    pub(super) async fn kill_mosquitto(&mut self, http: &reqwest::Client) -> Result<()> {
        let deadline = Instant::now() + CAUGHT_UP_TIMEOUT;
        while !self.bridge_keeps_up(http).await {
            if Instant::now() > deadline {
                bail!("the bridge has not caught up within {} s", CAUGHT_UP_TIMEOUT.as_secs());
            }
            self.check()?;
            sleep(LOOK_INTERVAL).await;
        }
        self.mosquitto.kill().await;
        self.mosquitto = start_mosquitto(&self.launcher, &self.config)?;
        Ok(())
    }

    async fn bridge_keeps_up(&self, http: &reqwest::Client) -> bool {
        let metric = async |name| metric_sum(http, &self.admin, name).await;
        let (connected, in_flight) =
            (metric("garenne_mqtt_connected").await, metric("garenne_mqtt_in_flight").await);
        connected == Some(1) && in_flight.is_some_and(|messages| messages < MAX_INFLIGHT)
    }

    /// Stops the bridge, which acknowledges what it stored, and then Mosquitto.
    pub(super) async fn stop(&mut self, limit: Duration) {
        self.bridge.stop(limit).await;
        self.mosquitto.stop(STOP_TIMEOUT).await;
    }
}

/// The configuration. With `user root` a Mosquitto that root starts can write to the folder; others ignore it.
fn config_text(port: u16, folder: &str) -> String {
    format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\npersistence_location {folder}\n\
         autosave_on_changes true\nautosave_interval 1\nmax_queued_messages 0\nmax_inflight_messages {MAX_INFLIGHT}\n"
    )
}

fn start_mosquitto(launcher: &Launcher, config: &Path) -> Result<Process> {
    let installed = PROGRAMS.into_iter().find(|program| Path::new(program).exists());
    let mut command = launcher.command(OsStr::new(installed.unwrap_or("mosquitto")));
    command.arg("-c").arg(config);
    launcher
        .start("mosquitto", command, None)
        .context("--mqtt needs Mosquitto (on Debian: apt-get install mosquitto)")
}

fn start_bridge(launcher: &Launcher, url: &str, admin: &str) -> Result<Process> {
    let mut command = launcher.sibling("garenne-producer")?;
    command.args(["mqtt", "--url", url, "--subscribe", "zigbee2mqtt/#", "--maps", "builtin:zigbee2mqtt"]);
    command.args(["--client-id", "garenne-demo", "--admin", admin]);
    launcher.start("bridge", command, None)
}
