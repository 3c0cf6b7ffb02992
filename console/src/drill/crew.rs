//! The workers under drill: any command, kept at strength.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    time::Duration,
};

use garenne_common::shutdown::Receipt;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::{
    audit::Tail,
    process::{Launcher, Process, ProcessError},
};

/// A worker that dies this young has something wrong with it that trouble did not do.
const YOUNG: Duration = Duration::from_secs(2);
/// So many deaths of that kind in a row end the drill.
const STILLBORN: u32 = 10;

/// One worker.
pub(super) struct Hand {
    pub(super) process: Process,
    pub(super) log: Tail,
    since: Instant,
    /// Somebody told it to end.
    pub(super) told: bool,
}

/// All of them.
pub(super) struct Crew {
    launcher: Launcher,
    command: Option<String>,
    stock: Vec<OsString>,
    pub(super) hands: Vec<Hand>,
    old_logs: Vec<Tail>,
    started: u32,
    stillborn: u32,
}

/// A worker that has ended.
pub(super) struct Ended {
    pub(super) name: String,
    pub(super) told: bool,
    pub(super) receipt: Option<Receipt>,
    pub(super) how: String,
}

impl Crew {
    /// A crew that runs `command`, or the stock worker with the bench kinds and these sinks.
    pub(super) fn new(launcher: Launcher, command: Option<String>, sinks: &[&str]) -> Self {
        let mut stock: Vec<OsString> =
            ["--enable-bench", "--shutdown-mode", "soft"].map(OsString::from).into();
        for sink in sinks {
            stock.extend(["--sink", sink].map(OsString::from));
        }
        Self { launcher, command, stock, hands: Vec::new(), old_logs: Vec::new(), started: 0, stillborn: 0 }
    }

    /// Starts one more and answers its name.
    pub(super) fn add(&mut self) -> Result<String, ProcessError> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let results: PathBuf = self.launcher.dir.join(format!("{name}.ndjson"));
        let mut launcher = self.launcher.clone();
        launcher.environment.push(("GARENNE_WORKER_ID".into(), name.clone().into()));
        let process = match &self.command {
            Some(command) => {
                // The shell becomes the command, so that signals reach it and not the shell.
                let line = format!("exec {}", command.replace("{name}", &name));
                launcher.start(&name, OsStr::new("sh"), ["-c".into(), line.into()], Some(&results))?
            }
            None => {
                let program = launcher.sibling("garenne-worker")?;
                launcher.start(&name, program.as_os_str(), self.stock.iter().cloned(), Some(&results))?
            }
        };
        let (log, since) = (Tail::new(&results), Instant::now());
        self.hands.push(Hand { process, log, since, told: false });
        Ok(name)
    }

    /// One of the workers that nobody has told to end.
    pub(super) fn pick(&mut self, pick: usize) -> Option<&mut Hand> {
        let mut fit: Vec<_> = self.hands.iter_mut().filter(|hand| !hand.told).collect();
        let index = pick.checked_rem(fit.len())?;
        Some(fit.swap_remove(index))
    }

    /// A worker by its name.
    pub(super) fn named(&self, name: &str) -> Option<&Hand> {
        self.hands.iter().find(|hand| hand.process.name == name)
    }

    /// Takes those that have ended out of the crew.
    ///
    /// # Errors
    /// Workers that die as soon as they start.
    pub(super) fn ended(&mut self) -> Result<Vec<Ended>, ProcessError> {
        let mut ended = Vec::new();
        let mut index = 0;
        while index < self.hands.len() {
            let Some(status) = self.hands[index].process.ended() else {
                index += 1;
                continue;
            };
            let hand = self.hands.remove(index);
            let last = hand.process.last_line();
            let young = !hand.told && hand.since.elapsed() < YOUNG;
            self.stillborn = if young { self.stillborn + 1 } else { 0 };
            if self.stillborn >= STILLBORN {
                return Err(hand.process.error(status));
            }
            ended.push(Ended {
                name: hand.process.name.clone(),
                told: hand.told,
                receipt: serde_json::from_str(&last).ok(),
                how: format!("{status}: {last}"),
            });
            self.old_logs.push(hand.log);
        }
        Ok(ended)
    }

    /// Every execution log there is or was.
    pub(super) fn logs(&mut self) -> impl Iterator<Item = &mut Tail> {
        self.hands.iter_mut().map(|hand| &mut hand.log).chain(&mut self.old_logs)
    }

    /// Stops everybody in order; whoever takes longer than `patience` is killed.
    pub(super) async fn stop(&mut self, patience: Duration) {
        for hand in &mut self.hands {
            hand.told = true;
            hand.process.signal(Signal::CONT);
            hand.process.signal(Signal::TERM);
        }
        for hand in &mut self.hands {
            hand.process.end_within(patience).await;
        }
    }
}
