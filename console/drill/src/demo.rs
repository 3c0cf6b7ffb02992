//! `garenne-drill demo`: a run in which a gateway receives a recording, with messages for users who see Garenne for the
//! first time.

mod findings;
mod gateway;
mod metrics;
mod mqtt;
mod narration;
mod recording;

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use garenne_common::exit::Failure;
use garenne_operator::operator::Operator;
use tokio::time::Instant;

use self::{
    gateway::{ADMIN_PORT, Gateway, Replay},
    mqtt::Mqtt,
    recording::{PASS, Recording},
};
use crate::{
    account::{Expected, Store},
    cli::{DemoArgs, FaultArgs},
    engine::{Engine, FaultMeans},
    fault::{Fault, Injected},
    fleet::{STOCK_WORKER, WorkerExit, WorkerFleet},
    launcher::Launcher,
    report::Report,
    run::{Plan, Preparation, Run},
    schedule::{Schedule, Step},
    screen::Screen,
    sender::Sender,
};

/// The faults, in their order. With `--mqtt` everything between a device and the database is killed.
const FAULTS: [Fault; 2] = [Fault::Soft, Fault::Kill];
const MQTT_FAULTS: [Fault; 5] =
    [Fault::Soft, Fault::Bridge, Fault::Kill, Fault::Mosquitto, Fault::BrokerRestart];
/// Limit for the first receipt of a burst.
const BURST_TIMEOUT: Duration = Duration::from_secs(3);
/// Limit for the start of a process. It takes milliseconds, and longer on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of an orderly stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(35);
/// Limit for the requests that a stopping replay has sent.
const REPLAY_STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Limit of a request to an admin port.
const ADMIN_TIMEOUT: Duration = Duration::from_millis(300);
/// Time without progress after which readings count as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a recording, pass after pass, and bursts of it.
pub(crate) struct Demo {
    recording: Recording,
    speed: f64,
    http: reqwest::Client,
    screen: Screen,
    launcher: Launcher,
    gateway: Gateway,
    /// With `--mqtt`.
    mqtt: Option<Mqtt>,
    /// The current pass of the recording.
    main: Option<Replay>,
    bursts: Vec<Replay>,
    /// When the first pass of a recording began.
    first_pass: Option<SystemTime>,
    passes: u64,
    started: Instant,
    lasts: Option<Duration>,
    is_interrupted: bool,
    is_over: bool,
}

impl Demo {
    /// Starts all processes.
    pub(crate) async fn start<'a>(
        operator: &'a Operator,
        args: &DemoArgs,
        config: Option<&Path>,
    ) -> Result<Run<'a, Self>, Failure> {
        let recording = Recording::open(args.recording.as_deref())?;
        let dir = args.dir.as_deref();
        let preparation = Preparation::new(operator, config, "garenne-demo", dir, None).await?;
        let launcher = &preparation.launcher;
        let http = reqwest::Client::builder().timeout(ADMIN_TIMEOUT).build().map_err(anyhow::Error::from)?;
        let screen = Screen::new();
        screen.say(&format!("starting a gateway and {} workers", args.workers));
        let mut gateway = Gateway::start(launcher)?;
        let mut mqtt = args.mqtt.then(|| Mqtt::start(launcher.clone())).transpose()?;
        let command = preparation.stock_worker(&[], Some(ADMIN_PORT + 1));
        let mut fleet = WorkerFleet::start(launcher.clone(), command, args.workers)?;
        gateway.process.until_ready(&http, &format!("{}/readyz", gateway.admin), START_TIMEOUT).await?;
        if let Some(mqtt) = &mut mqtt {
            mqtt.until_ready(&http, START_TIMEOUT).await?;
        }
        fleet.until_ready(&http, START_TIMEOUT).await?;
        screen.say(&narration::places(&gateway, mqtt.as_ref(), &fleet, operator, &preparation.dir));
        let speed = recording.speed(args.speed, args.lasts);
        screen.say(&narration::beginning(&recording, speed, args.lasts));
        let schedule =
            Schedule::even(args.lasts.unwrap_or(PASS), if args.mqtt { &MQTT_FAULTS } else { &FAULTS });
        let restart = preparation.broker_restart(args.broker_restart.as_ref());
        let broker_restarts = restart.iter().len() as u32;
        let faults = FaultArgs { kills: 1, softs: 1, broker_restarts, ..FaultArgs::default() };
        let plan = Plan {
            schedule,
            report: Report { worker: STOCK_WORKER.to_owned(), faults, ..Report::default() },
            patience: PATIENCE,
            json: false,
        };
        let demo = Self {
            recording,
            speed,
            http,
            screen: screen.clone(),
            launcher: launcher.clone(),
            gateway,
            mqtt,
            main: None,
            bursts: Vec::new(),
            first_pass: None,
            passes: 0,
            started: Instant::now(),
            lasts: args.lasts,
            is_interrupted: false,
            is_over: false,
        };
        let engine = Engine::new(fleet, FaultMeans { restart, ..FaultMeans::default() });
        Ok(Run::new(preparation, plan, engine, demo, screen))
    }

    /// Starts the next pass of the recording when the last one is over. `false` if there is none.
    fn feed(&mut self, engine: &mut Engine) -> Result<bool, Failure> {
        if let Some(replay) = &mut self.main {
            match replay.process.exit_status() {
                None => return Ok(true),
                Some(status) if !status.success() => {
                    return Err(replay.process.unexpected_exit(status).into());
                }
                Some(_) => {
                    self.read_receipts(engine)?;
                    self.main = None;
                    if matches!(self.recording, Recording::AsIs(_)) {
                        return Ok(false);
                    }
                }
            }
        }
        self.passes += 1;
        let name = format!("pass-{}", self.passes);
        self.main = if let Recording::AsIs(path) = &self.recording {
            let speed = if self.speed > 0.0 { format!("{}x", self.speed) } else { "max".to_owned() };
            Some(self.replay(&name, path, &speed)?)
        } else {
            self.replay_moved(&name, "pass.csv", "", "1x")?
        };
        Ok(true)
    }

    /// Sends the recording with its times moved to the present, if it can be moved, from a file of this name.
    fn replay_moved(&mut self, name: &str, file: &str, prefix: &str, speed: &str) -> Result<Option<Replay>> {
        let Recording::Movable(recording) = &self.recording else { return Ok(None) };
        let (file, start) = (self.launcher.dir.join(file), SystemTime::now());
        recording.write(&file, start, self.speed, prefix)?;
        self.first_pass.get_or_insert(start);
        self.replay(name, &file, speed).map(Some)
    }

    /// Sends a recording, with `--mqtt` to Mosquitto.
    fn replay(&self, name: &str, file: &Path, speed: &str) -> Result<Replay> {
        let to = self.mqtt.as_ref().map_or(&self.gateway.url, |mqtt| &mqtt.url);
        Replay::start(&self.launcher, name, file, speed, to)
    }

    /// Reads the receipts of all replays.
    fn read_receipts(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        for replay in self.main.iter_mut().chain(&mut self.bursts) {
            let new: Vec<Expected> = replay.receipts.read().map_err(anyhow::Error::from)?;
            replay.acknowledged += new.len() as u64;
            engine.acknowledged(new);
        }
        Ok(())
    }

    /// The workers' findings in the first pass. Empty if the readings cannot be queried.
    async fn found(&self, store: Option<&Store>) -> String {
        let (Some(store), Recording::Movable(recording), Some(start)) =
            (store, &self.recording, self.first_pass)
        else {
            return String::new();
        };
        let pass = (start, self.speed);
        match findings::find(&self.http, &self.gateway.url, store, recording, pass).await {
            Ok(text) => text,
            // The account does not depend on it.
            Err(error) => format!("\nThe workers' findings are not available: {error:#}\n"),
        }
    }
}

impl Sender for Demo {
    const TASKS: &'static str = "readings";
    const EFFECT: &'static str = "stored";

    /// Sends until the time is up and every fault was injected, or the recording is over. On a busy machine bursts start
    /// late, and so do the faults that wait for them.
    async fn poll(&mut self, engine: &mut Engine, is_calm: bool) -> Result<(), Failure> {
        self.gateway.process.check()?;
        if let Some(mqtt) = &mut self.mqtt {
            mqtt.check()?;
        }
        self.read_receipts(engine)?;
        if self.is_over {
            return Ok(());
        }
        let is_time_up = is_calm && self.lasts.is_some_and(|span| self.started.elapsed() >= span);
        if is_time_up || self.is_interrupted || !self.feed(engine)? {
            for replay in self.main.iter_mut().chain(&mut self.bursts) {
                replay.process.stop(REPLAY_STOP_TIMEOUT).await;
            }
            self.read_receipts(engine)?;
            self.is_over = true;
            self.screen.say("\n>> No more readings: the workers finish what is queued.");
        }
        Ok(())
    }

    /// A share of the time. A fault waits for the first receipt of its burst: without queued tasks it would show
    /// nothing.
    fn progress(&mut self, _engine: &Engine) -> Option<f64> {
        let burst_is_starting = self.bursts.last_mut().is_some_and(|burst| {
            burst.acknowledged == 0
                && burst.started.elapsed() < BURST_TIMEOUT
                && burst.process.exit_status().is_none()
        });
        let span = self.lasts.unwrap_or(PASS).as_secs_f64().max(1e-3);
        (!self.is_over && !burst_is_starting).then(|| self.started.elapsed().as_secs_f64() / span)
    }

    async fn step(&mut self, step: Step, engine: &mut Engine) -> Result<(), Failure> {
        match (step, &mut self.mqtt) {
            (Step::Burst, _) => {
                let name = format!("burst-{}", self.bursts.len() + 1);
                if let Some(burst) =
                    self.replay_moved(&name, &format!("{name}.csv"), &format!("{name}-"), "max")?
                {
                    self.screen.say(&narration::burst(self.recording.readings()));
                    self.bursts.push(burst);
                }
            }
            (Step::Fault(fault @ (Fault::Bridge | Fault::Mosquitto), _), Some(mqtt)) => {
                // Before the kill, which waits for the right moment.
                self.screen.say(&narration::fault(fault, "", ""));
                engine.timeline.record(Some(fault), "mqtt".to_owned(), None);
                match fault {
                    Fault::Bridge => mqtt.kill_bridge().await?,
                    _ => mqtt.kill_mosquitto(&self.http).await?,
                }
            }
            (Step::Fault(fault, pick), _) => {
                if let Some(Injected { target, replacement }) = engine.inject(fault, pick)? {
                    self.screen.say(&narration::fault(fault, &target, &replacement.unwrap_or_default()));
                }
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn may_pause(&self) -> bool {
        !self.is_over
    }

    fn end_early(&mut self) -> bool {
        !self.is_over && !std::mem::replace(&mut self.is_interrupted, true)
    }

    fn tell_stopped(&self, exit: &WorkerExit) {
        if let (Some(took), Some(receipt)) = (exit.stopped_for, &exit.receipt) {
            self.screen.say(&narration::stopped(&exit.name, receipt, took));
        }
    }

    async fn finish(&mut self, store: Option<&Store>) -> String {
        let found = self.found(store).await;
        self.gateway.process.stop(STOP_TIMEOUT).await;
        if let Some(mqtt) = &mut self.mqtt {
            mqtt.stop(STOP_TIMEOUT).await;
        }
        found
    }
}
