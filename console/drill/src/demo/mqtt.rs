//! The demo's Mosquitto and its MQTT bridge.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::metrics::metric_sum;
use crate::{
    launcher::{Launcher, free_port},
    process::Process,
};

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
/// A bridge with fewer messages in flight keeps up.
const FEW_MESSAGES: u64 = 20;
/// A bridge that had no message in flight at so many looks has read all that was sent to it.
const IDLE_LOOKS: usize = 5;

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

    /// Kills Mosquitto and starts it again.
    ///
    /// Mosquitto acknowledges a message after it sent it to the bridge, and a moment before it writes it to its disk. So it
    /// is frozen until the bridge has stored what it was sent: a kill would discard what the bridge has not read.
    pub(super) async fn kill_mosquitto(&mut self, http: &reqwest::Client) -> Result<()> {
        self.until_in_flight(http, FEW_MESSAGES, 1).await?;
        self.mosquitto.signal(Signal::STOP);
        let idle = self.until_in_flight(http, 1, IDLE_LOOKS).await;
        self.mosquitto.kill().await;
        idle?;
        self.mosquitto = start_mosquitto(&self.launcher, &self.config)?;
        Ok(())
    }

    /// Waits until the bridge is connected and has fewer messages in flight than `limit` at so many looks in a row.
    async fn until_in_flight(&mut self, http: &reqwest::Client, limit: u64, looks: usize) -> Result<()> {
        let deadline = Instant::now() + CAUGHT_UP_TIMEOUT;
        let mut in_a_row = 0;
        while in_a_row < looks {
            if Instant::now() > deadline {
                bail!("the bridge has not caught up within {} s", CAUGHT_UP_TIMEOUT.as_secs());
            }
            self.check()?;
            sleep(LOOK_INTERVAL).await;
            let metric = async |name| metric_sum(http, &self.admin, name).await;
            let connected = metric("garenne_mqtt_connected").await == Some(1);
            let in_flight = metric("garenne_mqtt_in_flight").await;
            let is_below = connected && in_flight.is_some_and(|messages| messages < limit);
            in_a_row = if is_below { in_a_row + 1 } else { 0 };
        }
        Ok(())
    }

    /// Stops the bridge, which acknowledges what it stored, and then Mosquitto.
    pub(super) async fn stop(&mut self, limit: Duration) {
        self.bridge.stop(limit).await;
        self.mosquitto.stop(STOP_TIMEOUT).await;
    }
}

/// The configuration. Without a limit of messages in flight, each message is sent to the bridge before it is acknowledged.
/// With `user root` a Mosquitto that root starts can write to the folder; others ignore it.
fn config_text(port: u16, folder: &str) -> String {
    format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\npersistence_location {folder}\n\
         autosave_on_changes true\nautosave_interval 1\nmax_queued_messages 0\nmax_inflight_messages 0\n"
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
