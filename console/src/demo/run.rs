//! Runs a demo: starts the processes, sends readings, injects faults, and waits for its end.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use garenne_chaos::{
    BrokerRestart, Engine, Fault, FaultInjector, FaultStep, WorkerExit, WorkerFleet,
    audit::{Expected, Store},
    create_run_folder, metric_sum,
};
use garenne_common::exit::{Exit, Failure};
use tokio::time::Instant;

use super::{
    cli::DemoArgs,
    gateway::{ADMIN_PORT, Gateway, Replay},
    mqtt::Mqtt,
    recording::{Movable, PASS, Recording},
    schedule::{DemoSchedule, DemoStep, mqtt_schedule, schedule},
    screen::Screen,
    story,
    summary::{Counts, Summary},
};
use crate::{
    chaos,
    interrupt::Interrupts,
    operator::Operator,
    queues::{Snapshot, SnapshotReader},
    ticks::ticks,
};

/// Interval between two polls of the processes.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Ticks between two summary lines.
pub(super) const TICKS_PER_LINE: u64 = 10;
/// Limit for the first receipt of a burst.
const BURST_TIMEOUT: Duration = Duration::from_secs(3);
/// Limit for the start of a process. It takes milliseconds, and longer on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of a request to an admin port. A worker that does not answer is asked again a second later.
const ADMIN_TIMEOUT: Duration = Duration::from_millis(300);

/// A demo under way.
pub(super) struct Demo<'o> {
    pub(super) operator: &'o Operator,
    pub(super) dir: PathBuf,
    pub(super) recording: Recording,
    pub(super) speed: f64,
    pub(super) http: reqwest::Client,
    pub(super) screen: Screen,
    pub(super) gateway: Gateway,
    /// With `--mqtt`.
    pub(super) mqtt: Option<Mqtt>,
    pub(super) engine: Engine,
    /// The current pass of the recording.
    pub(super) main: Option<Replay>,
    pub(super) bursts: Vec<Replay>,
    /// When the first pass of a recording began.
    pub(super) first_pass: Option<SystemTime>,
    /// Reads the queues' depths.
    pub(super) queue_reader: SnapshotReader,
    /// Whether the broker's queues hold no task that could still be executed.
    pub(super) idle: bool,
    passes: u64,
    dead_before: u64,
    /// Redeliveries by worker. The last count of a worker that has ended stays.
    redelivered: HashMap<String, u64>,
    summary: Summary,
    started: Instant,
}

/// Runs the demo.
///
/// # Errors
/// One line and an exit code; [`Exit::Failed`] also if a reading was lost or stored twice.
pub async fn run(operator: &Operator, args: &DemoArgs, config: Option<&Path>) -> Result<Exit, Failure> {
    let recording = Recording::open(args.recording.as_deref())?;
    chaos::ensure_topology(operator).await?;
    let prefix = &operator.settings.common.prefix;
    let store = match &operator.settings.postgres_url {
        Some(url) => Some(Store::connect(url.expose(), prefix).await?),
        None => None,
    };
    let mut interrupts = Interrupts::catch()?;
    let mut demo = tokio::select! {
        demo = Demo::start(operator, args, config, recording) => demo?,
        () = interrupts.recv() => return Ok(Exit::Interrupted),
    };
    tokio::select! {
        ended = demo.feed_until_end(args.lasts) => ended?,
        () = interrupts.recv() => {}
    }
    demo.conclude(store, &mut interrupts).await
}

impl<'o> Demo<'o> {
    async fn start(
        operator: &'o Operator,
        args: &DemoArgs,
        config: Option<&Path>,
        recording: Recording,
    ) -> Result<Self, Failure> {
        let dir = create_run_folder(args.dir.as_deref(), "garenne-demo")?;
        let launcher = chaos::launcher(operator, &dir, config)?;
        let http = reqwest::Client::builder().timeout(ADMIN_TIMEOUT).build().map_err(anyhow::Error::from)?;
        let screen = Screen::new();
        screen.say(&format!("starting a gateway and {} workers", args.workers));
        let mut gateway = Gateway::start(launcher.clone())?;
        let mut mqtt = args.mqtt.then(|| Mqtt::start(launcher.clone())).transpose()?;
        let command = chaos::stock_worker(operator, &[], Some(ADMIN_PORT + 1));
        let mut fleet = WorkerFleet::start(launcher, command, args.workers)?;
        gateway.process.until_ready(&http, &format!("{}/readyz", gateway.admin), START_TIMEOUT).await?;
        if let Some(mqtt) = &mut mqtt {
            mqtt.until_ready(&http, START_TIMEOUT).await?;
        }
        fleet.until_ready(&http, START_TIMEOUT).await?;
        let mut queue_reader = SnapshotReader::default();
        let dead_before = queues(operator, &mut queue_reader).await.map_or(0, |queues| queues.dead.ready);
        let (speed, pace) = pace(&recording, args);
        let addresses = (gateway.url.as_str(), gateway.admin.as_str());
        screen.say(&story::places(addresses, fleet.workers(), operator.management.as_ref(), &dir));
        if let Some(mqtt) = &mqtt {
            screen.say(&story::mqtt_places(&mqtt.url, &mqtt.admin));
        }
        screen.say(&story::beginning(&pace, args.lasts));
        let restart = args.broker_restart.as_ref().map(|command| {
            let command = command.clone();
            BrokerRestart { broker: operator.broker.clone(), command }
        });
        Ok(Self {
            operator,
            dir,
            recording,
            speed,
            http,
            screen,
            gateway,
            mqtt,
            engine: Engine::new(fleet, FaultInjector::new(Duration::ZERO, restart, None)),
            main: None,
            bursts: Vec::new(),
            first_pass: None,
            queue_reader,
            idle: false,
            passes: 0,
            dead_before,
            redelivered: HashMap::new(),
            summary: Summary::default(),
            started: Instant::now(),
        })
    }

    /// Sends readings and injects faults until the time is up and every fault was injected, or the recording is over. On a
    /// busy machine bursts start late, and so do the faults that wait for them.
    async fn feed_until_end(&mut self, lasts: Option<Duration>) -> Result<(), Failure> {
        let span = lasts.unwrap_or(PASS);
        let mut schedule = if self.mqtt.is_some() { mqtt_schedule(span) } else { schedule(span) };
        self.started = Instant::now();
        let mut ticks = ticks(TICK);
        for tick in 0_u64.. {
            ticks.tick().await;
            let elapsed = self.started.elapsed();
            let is_over = lasts.is_some_and(|span| elapsed >= span) && schedule.is_over();
            if is_over || !self.feed()? {
                return Ok(());
            }
            while let Some(step) = self.due(&mut schedule, elapsed) {
                self.step(step).await?;
            }
            self.poll()?;
            if tick.is_multiple_of(TICKS_PER_LINE) {
                self.draw().await;
            }
        }
        Ok(())
    }

    /// Starts the next pass of the recording when the last one is over. `false` if there is none.
    fn feed(&mut self) -> Result<bool, Failure> {
        if let Some(replay) = &mut self.main {
            match replay.process.exit_status() {
                None => return Ok(true),
                Some(status) if !status.success() => {
                    return Err(replay.process.unexpected_exit(status).into());
                }
                Some(_) => {
                    self.read_receipts()?;
                    self.main = None;
                    if matches!(self.recording, Recording::AsIs(_)) {
                        return Ok(false);
                    }
                }
            }
        }
        self.passes += 1;
        self.main = Some(match &self.recording {
            Recording::Movable(recording) => {
                let file = self.dir.join(format!("pass-{}.csv", self.passes));
                let start = SystemTime::now();
                recording.write(&file, start, self.speed, "")?;
                self.first_pass.get_or_insert(start);
                self.replay(&file, "1x", true)?
            }
            Recording::AsIs(path) => {
                let speed = if self.speed > 0.0 { format!("{}x", self.speed) } else { "max".to_owned() };
                let path = path.clone();
                self.replay(&path, &speed, false)?
            }
        });
        Ok(true)
    }

    /// Sends a recording, with `--mqtt` to Mosquitto.
    fn replay(&mut self, file: &Path, speed: &str, temporary: bool) -> anyhow::Result<Replay> {
        let mqtt = self.mqtt.as_ref().map(|mqtt| mqtt.url.as_str());
        self.gateway.replay(file, speed, temporary, mqtt)
    }

    /// The next step that is due. A fault waits for the first receipt of its burst: without queued tasks it would
    /// show nothing.
    fn due(&mut self, schedule: &mut DemoSchedule, elapsed: Duration) -> Option<DemoStep> {
        let burst_is_starting = self.bursts.last_mut().is_some_and(|burst| {
            burst.acknowledged == 0
                && burst.started.elapsed() < BURST_TIMEOUT
                && burst.process.exit_status().is_none()
        });
        if burst_is_starting { None } else { schedule.due(elapsed) }
    }

    async fn step(&mut self, step: DemoStep) -> Result<(), Failure> {
        match step {
            DemoStep::Burst => {
                let Recording::Movable(recording) = &self.recording else { return Ok(()) };
                let number = self.bursts.len() + 1;
                let file = self.dir.join(format!("burst-{number}.csv"));
                recording.write(&file, SystemTime::now(), self.speed, &format!("burst-{number}-"))?;
                self.screen.say(&story::burst(recording.readings));
                let burst = self.replay(&file, "max", true)?;
                self.bursts.push(burst);
            }
            DemoStep::Fault(fault) => {
                let pick = self.engine.fleet.busiest(&self.http).await;
                let Some(injected) = self.engine.inject(FaultStep { fault, pick })? else { return Ok(()) };
                let replacement = injected.replacement.unwrap_or_default();
                self.screen.say(&match fault {
                    Fault::BrokerRestart => story::kill_broker().to_owned(),
                    Fault::Kill => story::kill(&injected.target, &replacement),
                    _ => story::soft_stop(&injected.target, &replacement),
                });
            }
            DemoStep::KillBridge => {
                let Some(mqtt) = &mut self.mqtt else { return Ok(()) };
                self.screen.say(story::kill_bridge());
                mqtt.kill_bridge().await?;
            }
            DemoStep::KillMosquitto => {
                let Some(mqtt) = &mut self.mqtt else { return Ok(()) };
                self.screen.say(story::kill_mosquitto());
                mqtt.kill_mosquitto(&self.http).await?;
            }
        }
        Ok(())
    }

    /// Reports workers that have ended, and reads new receipts and executions.
    pub(super) fn poll(&mut self) -> Result<(), Failure> {
        self.gateway.process.check()?;
        if let Some(mqtt) = &mut self.mqtt {
            mqtt.check()?;
        }
        self.read_receipts()?;
        for exit in self.engine.poll()? {
            self.report_exit(&exit);
        }
        Ok(())
    }

    pub(super) fn report_exit(&self, exit: &WorkerExit) {
        if let Some(replacement) = &exit.replacement {
            self.screen.say(&story::crashed(&exit.name, &exit.status, replacement));
        } else if let (Some(took), Some(receipt)) = (exit.stopped_for, &exit.receipt) {
            self.screen.say(&story::stopped(&exit.name, receipt, took));
        }
    }

    /// Reads the receipts of all replays.
    pub(super) fn read_receipts(&mut self) -> Result<(), Failure> {
        for replay in self.main.iter_mut().chain(&mut self.bursts) {
            let new: Vec<Expected> = replay.receipts.read().map_err(anyhow::Error::from)?;
            replay.acknowledged += new.len() as u64;
            self.engine.acknowledged(new);
        }
        Ok(())
    }

    /// Updates the summary line and the progress bar.
    pub(super) async fn draw(&mut self) {
        for worker in self.engine.fleet.workers() {
            let Some(admin) = &worker.admin else { continue };
            if let Some(count) = metric_sum(&self.http, admin, "garenne_redeliveries_total").await {
                self.redelivered.insert(worker.name().to_owned(), count);
            }
        }
        let queues = queues(self.operator, &mut self.queue_reader).await;
        let dead = queues.as_ref().map_or(0, |it| it.dead.ready.saturating_sub(self.dead_before));
        let queued = |it: &Snapshot| it.lanes.iter().map(|lane| lane.queue.ready).sum();
        let account = &self.engine.account;
        self.idle = queues.as_ref().is_some_and(|it| {
            let retrying: u64 = it.lanes.iter().map(|lane| lane.retrying).sum();
            queued(it) + retrying + it.quarantine.ready == 0 && account.open() as u64 <= dead
        });
        let counts = Counts {
            published: account.expected().len() as u64,
            queued: queues.as_ref().map(queued),
            done: account.executed_tasks() as u64,
            requeued: self.redelivered.values().sum(),
            dead,
            workers: self.engine.fleet.workers().len(),
        };
        self.screen.summary(&self.summary.line(self.started.elapsed(), counts));
        if let Recording::Movable(recording) = &self.recording {
            let sent = self.main.as_ref().map_or(0, |replay| replay.acknowledged);
            self.screen.pass(format!("pass {}", self.passes), sent, recording.readings);
        }
    }
}

/// The speed of the recording, and a line that describes it.
fn pace(recording: &Recording, args: &DemoArgs) -> (f64, String) {
    match recording {
        Recording::Movable(recording) => {
            let speed = args.speed.unwrap_or_else(|| fitting_speed(recording, args.lasts)).max(1e-6);
            let hours = recording.span.as_secs_f64() / 3600.0;
            let pass = recording.span.as_secs_f64() / speed;
            let rate = recording.readings as f64 / pass.max(1e-3);
            let readings = recording.readings;
            let line = format!(
                "\nReplaying {hours:.1} hours with {readings} readings in {pass:.0} s, repeatedly: about {rate:.0} readings per \
                 second, each with its own time."
            );
            (speed, line)
        }
        Recording::AsIs(path) => {
            let line = format!(
                "\nReplaying {} once and unchanged: it has no column `time` in RFC 3339, so it cannot be repeated.",
                path.display()
            );
            (args.speed.unwrap_or(0.0), line)
        }
    }
}

/// The speed at which a pass takes its default time. The findings at the end are those of the first pass, so a short
/// demo has a complete one too.
fn fitting_speed(recording: &Movable, lasts: Option<Duration>) -> f64 {
    let pass = lasts.map_or(PASS, |lasts| PASS.min(lasts * 4 / 5));
    recording.span.as_secs_f64() / pass.as_secs_f64().max(1e-3)
}

/// The queues now; nothing while the broker cannot be reached or a queue is missing.
async fn queues(operator: &Operator, reader: &mut SnapshotReader) -> Option<Snapshot> {
    let snapshot = reader.read(operator).await.ok()?;
    snapshot.missing.is_empty().then_some(snapshot)
}
