//! The demo's processes: a gateway, workers, and the replays that feed them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use garenne_common::shutdown::Receipt;
use rustix::process::Signal;
use tokio::time::Instant;

use super::counters::counter;
use crate::{
    audit::Tail,
    process::{Launcher, Process, ProcessError, free_port},
};

/// The gateway's admin port where it is free, and the workers' from the next on: none that a program takes
/// unasked, which could come between the look and the start.
const ADMIN: u16 = 9470;
/// Connecting takes milliseconds; a machine that compiles on the side takes longer.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Longer than a soft stop of short tasks can take.
const STOP_WITHIN: Duration = Duration::from_secs(35);

/// A worker with its files and address.
pub(super) struct Member {
    pub(super) process: Process,
    pub(super) admin: String,
    pub(super) log: Tail,
    receipt: PathBuf,
    /// When it was told to stop.
    pub(super) leaving: Option<Instant>,
}

/// A replay under way.
pub(super) struct Replay {
    pub(super) process: Process,
    pub(super) receipts: Tail,
    pub(super) since: Instant,
    /// Whether anything of it has been acknowledged.
    pub(super) arrived: bool,
    file: Option<PathBuf>,
}

/// All of them.
pub(super) struct Fleet {
    launcher: Launcher,
    http: reqwest::Client,
    sinks: Vec<&'static str>,
    pub(super) gateway: Process,
    pub(super) gateway_url: String,
    pub(super) gateway_admin: String,
    pub(super) members: Vec<Member>,
    /// Logs of those that are gone; each may still hold lines that were not read.
    pub(super) old_logs: Vec<Tail>,
    started: usize,
    replays: usize,
}

impl Fleet {
    /// Starts the gateway and `workers` workers, and waits until all of them are ready.
    pub(super) async fn start(
        launcher: Launcher,
        http: reqwest::Client,
        workers: u16,
        postgres: bool,
    ) -> Result<Self, ProcessError> {
        let port = |name: &str, wish| {
            free_port(wish).map_err(|source| ProcessError::Start { name: name.to_owned(), source })
        };
        let address = format!("127.0.0.1:{}", port("gateway", 8080)?);
        let admin = format!("127.0.0.1:{}", port("gateway", ADMIN)?);
        let program = launcher.sibling("garenne-producer")?;
        let arguments = ["serve", "--listen", &address, "--admin", &admin].map(OsString::from);
        let gateway = launcher.start("gateway", program.as_os_str(), arguments, None)?;
        let sinks = if postgres { vec!["stdout", "postgres"] } else { vec!["stdout"] };
        let gateway_url = format!("http://{address}");
        let mut fleet = Self {
            launcher,
            http,
            sinks,
            gateway,
            gateway_url,
            gateway_admin: format!("http://{admin}"),
            members: Vec::new(),
            old_logs: Vec::new(),
            started: 0,
            replays: 0,
        };
        for _ in 0..workers {
            fleet.add()?;
        }
        let ready = format!("{}/readyz", fleet.gateway_admin);
        fleet.gateway.ready(&fleet.http, &ready, READY_WITHIN).await?;
        for member in &mut fleet.members {
            member.process.ready(&fleet.http, &format!("{}/readyz", member.admin), READY_WITHIN).await?;
        }
        Ok(fleet)
    }

    /// Starts one more worker and answers its name.
    pub(super) fn add(&mut self) -> Result<String, ProcessError> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        // Neighbouring ports, where they are free, are easier to remember.
        let wish = ADMIN + u16::try_from(self.started).unwrap_or(1);
        let port = free_port(wish).map_err(|source| ProcessError::Start { name: name.clone(), source })?;
        let admin = format!("127.0.0.1:{port}");
        let results = self.launcher.dir.join(format!("{name}.ndjson"));
        let receipt = self.launcher.dir.join(format!("{name}.receipt.json"));
        let mut arguments: Vec<OsString> =
            ["--worker-id", &name, "--admin", &admin, "--shutdown-mode", "soft"].map(OsString::from).into();
        for sink in &self.sinks {
            arguments.extend(["--sink", sink].map(OsString::from));
        }
        arguments.extend(["--receipt".into(), receipt.clone().into_os_string()]);
        let program = self.launcher.sibling("garenne-worker")?;
        let process = self.launcher.start(&name, program.as_os_str(), arguments, Some(&results))?;
        let (log, admin) = (Tail::new(&results), format!("http://{admin}"));
        self.members.push(Member { process, admin, log, receipt, leaving: None });
        Ok(name)
    }

    /// Of the workers that nobody has told to stop, the one that holds most right now.
    pub(super) async fn busiest(&mut self) -> Option<&mut Member> {
        let mut best = None;
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| member.leaving.is_none())
        {
            let holds = counter(&self.http, &member.admin, "garenne_pool_queue_length").await.unwrap_or(0);
            if best.is_none_or(|(most, _)| holds > most) {
                best = Some((holds, index));
            }
        }
        best.map(|(_, index)| &mut self.members[index])
    }

    /// Takes those that have ended out of the fleet.
    pub(super) fn gone(&mut self) -> Vec<Gone> {
        let mut gone = Vec::new();
        let mut index = 0;
        while index < self.members.len() {
            let Some(status) = self.members[index].process.ended() else {
                index += 1;
                continue;
            };
            let member = self.members.remove(index);
            gone.push(Gone {
                name: member.process.name.clone(),
                receipt: read_receipt(&member.receipt),
                told: member.leaving.map(|at| at.elapsed()),
                last: format!("{status}: {}", member.process.last_line()),
            });
            self.old_logs.push(member.log);
        }
        gone
    }

    /// Sends a recording through the gateway. A file of our own is removed when it has been sent.
    pub(super) fn replay(&mut self, file: &Path, speed: &str, own: bool) -> Result<Replay, ProcessError> {
        self.replays += 1;
        let name = format!("replay-{}", self.replays);
        let receipts = self.launcher.dir.join(format!("{name}.receipts.ndjson"));
        let mut arguments: Vec<OsString> = vec!["replay".into(), file.into()];
        arguments.extend(["--speed", speed, "--to", &self.gateway_url].map(OsString::from));
        arguments.extend(["--receipts".into(), receipts.clone().into_os_string()]);
        let program = self.launcher.sibling("garenne-producer")?;
        let process = self.launcher.start(&name, program.as_os_str(), arguments, None)?;
        let (receipts, file) = (Tail::new(&receipts), own.then(|| file.to_owned()));
        Ok(Replay { process, receipts, since: Instant::now(), arrived: false, file })
    }

    /// Tells every worker to stop softly, waits, and stops the gateway.
    pub(super) async fn stop(&mut self) -> Vec<Gone> {
        for member in &mut self.members {
            member.process.signal(Signal::TERM);
            member.leaving.get_or_insert_with(Instant::now);
        }
        for member in &mut self.members {
            member.process.end_within(STOP_WITHIN).await;
        }
        let gone = self.gone();
        self.gateway.signal(Signal::TERM);
        self.gateway.end_within(STOP_WITHIN).await;
        gone
    }
}

impl Replay {
    /// Removes the file that was made for it.
    pub(super) fn clean_up(&self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A worker that has ended.
pub(super) struct Gone {
    pub(super) name: String,
    pub(super) receipt: Option<Receipt>,
    /// How long ago it was told to; nothing when nobody did.
    pub(super) told: Option<Duration>,
    /// How it ended and the last thing it said.
    pub(super) last: String,
}

fn read_receipt(path: &Path) -> Option<Receipt> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
