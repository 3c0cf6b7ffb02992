//! The demo itself: start, feed, make trouble, drain, account.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use garenne_common::exit::{Exit, Failure};
use rustix::process::Signal;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    cli::DemoArgs,
    counters::{BrokerWatch, Redelivered},
    fleet::{Fleet, Gone, Replay},
    recording::{PASS, Recording},
    schedule::{Act, Schedule},
    screen::Screen,
    story::{self, Places},
    summary::{Counts, Summary},
};
use crate::{
    audit::{Evidence, Expected, Store},
    interrupt::interrupts,
    operator::Operator,
    process::{Launcher, ProcessError},
};

/// How often children are looked after.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two summary lines.
pub(super) const TICKS_A_LINE: u64 = 10;
/// A burst's first receipts, at the latest.
const BURST_ARRIVES_WITHIN: Duration = Duration::from_secs(3);
/// A worker that does not answer its admin port in this time answers next second.
const ADMIN_PATIENCE: Duration = Duration::from_millis(300);

pub(super) struct Demo<'o> {
    pub(super) operator: &'o Operator,
    pub(super) dir: PathBuf,
    pub(super) recording: Recording,
    pub(super) speed: f64,
    pub(super) http: reqwest::Client,
    pub(super) screen: Screen,
    pub(super) fleet: Fleet,
    pub(super) main: Option<Replay>,
    pub(super) bursts: Vec<Replay>,
    pub(super) passes: u64,
    pub(super) pass_sent: u64,
    /// When the first pass of a recording began.
    pub(super) first_pass: Option<SystemTime>,
    pub(super) watch: BrokerWatch<'o>,
    pub(super) dead_before: u64,
    pub(super) redelivered: Redelivered,
    pub(super) summary: Summary,
    pub(super) started: Instant,
    pub(super) sent: Vec<Expected>,
    /// Acknowledged and in no execution log yet.
    pub(super) open: HashSet<String>,
    pub(super) evidence: Evidence,
    /// Nothing is left that could still be done.
    pub(super) idle: bool,
}

/// Runs the demo.
///
/// # Errors
/// One line and an exit code; [`Exit::Failed`] also when the account is not balanced.
pub async fn run(operator: &Operator, args: &DemoArgs, config: Option<&Path>) -> Result<Exit, Failure> {
    let recording = Recording::open(args.recording.as_deref())?;
    let connection = operator.connect().await?;
    let wanted = operator.topology(operator.broker.version().await?);
    let ensured = garenne_amqp::declare::ensure(&connection, &wanted).await;
    Operator::leave(connection).await;
    ensured?;
    let store = match &operator.settings.postgres_url {
        Some(url) => {
            let prefix = &operator.settings.common.prefix;
            Some(Store::connect(url.expose(), prefix).await.map_err(anyhow::Error::from)?)
        }
        None => None,
    };
    let mut interrupts = interrupts()?;
    let mut demo = tokio::select! {
        demo = Demo::start(operator, args, config, recording) => demo?,
        _ = interrupts.recv() => return Ok(Exit::Interrupted),
    };
    let span = args.lasts.unwrap_or(PASS);
    demo.go(args.lasts, Schedule::over(span), &mut interrupts).await?;
    demo.account(store, &mut interrupts).await
}

impl<'o> Demo<'o> {
    async fn start(
        operator: &'o Operator,
        args: &DemoArgs,
        config: Option<&Path>,
        recording: Recording,
    ) -> Result<Self, Failure> {
        let dir = folder(args.dir.as_deref())?;
        let mut launcher = Launcher::new(&dir).map_err(anyhow::Error::from)?;
        operator.pass_on(&mut launcher, config);
        let http = reqwest::Client::builder().timeout(ADMIN_PATIENCE).build().map_err(anyhow::Error::from)?;
        let postgres = operator.settings.postgres_url.is_some();
        let screen = Screen::new();
        screen.say(&format!("starting a gateway and {} workers", args.workers));
        let fleet = Fleet::start(launcher, http.clone(), args.workers, postgres).await.map_err(failed)?;
        let mut watch = BrokerWatch::new(operator);
        let dead_before = watch.held().await.unwrap_or_default().dead;
        let (speed, pace) = match &recording {
            Recording::Movable(recording) => {
                // What the fleet finds at the end is found in the first pass: a short demo has a whole one too.
                let pass = args.lasts.map_or(PASS, |lasts| PASS.min(lasts * 4 / 5));
                let fits = recording.span.as_secs_f64() / pass.as_secs_f64().max(1e-3);
                let speed = args.speed.unwrap_or(fits).max(1e-6);
                let hours = recording.span.as_secs_f64() / 3600.0;
                let pass = recording.span.as_secs_f64() / speed;
                let rate = recording.readings as f64 / pass.max(1e-3);
                (
                    speed,
                    format!(
                        "\nReplaying {hours:.1} hours of {} readings in {pass:.0} s, over and over: about {rate:.0} readings a second, \
                     each with its own time.",
                        recording.readings
                    ),
                )
            }
            Recording::AsIs(path) => {
                let speed = args.speed.unwrap_or(0.0);
                (
                    speed,
                    format!(
                        "\nReplaying {} once, as it is: its times are not in a column `time` in RFC 3339, so it cannot go on.",
                        path.display()
                    ),
                )
            }
        };
        let broker = operator.management.as_ref().map(garenne_management::ManagementClient::address);
        let workers = fleet.members.iter().map(|m| (m.process.name.as_str(), m.admin.clone())).collect();
        screen.say(&story::places(&Places {
            gateway: &fleet.gateway_url,
            gateway_admin: &fleet.gateway_admin,
            workers,
            broker,
            dir: &dir,
        }));
        screen.say(&story::beginning(&pace, args.lasts));
        Ok(Self {
            operator,
            dir,
            recording,
            speed,
            http,
            screen,
            fleet,
            main: None,
            bursts: Vec::new(),
            passes: 0,
            pass_sent: 0,
            first_pass: None,
            watch,
            dead_before,
            redelivered: Redelivered::default(),
            summary: Summary::default(),
            started: Instant::now(),
            sent: Vec::new(),
            open: HashSet::new(),
            evidence: Evidence::default(),
            idle: false,
        })
    }

    /// Feeds and troubles the fleet until its time is up, the recording is over or somebody
    /// interrupts.
    async fn go(
        &mut self,
        lasts: Option<Duration>,
        mut schedule: Schedule,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<(), Failure> {
        self.started = Instant::now();
        let mut ticks = ticks();
        for tick in 0_u64.. {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = interrupts.recv() => return Ok(()),
            }
            let elapsed = self.started.elapsed();
            if lasts.is_some_and(|span| elapsed >= span) || !self.feed()? {
                return Ok(());
            }
            while let Some(act) = self.due(&mut schedule, elapsed) {
                self.act(act).await?;
            }
            self.look_after().await?;
            if tick.is_multiple_of(TICKS_A_LINE) {
                self.draw().await?;
            }
        }
        Ok(())
    }

    /// Keeps a pass of the recording under way; `false` when there is none left.
    fn feed(&mut self) -> Result<bool, Failure> {
        if let Some(replay) = &mut self.main {
            match replay.process.ended() {
                None => return Ok(true),
                Some(status) if !status.success() => return Err(failed(replay.process.error(status))),
                Some(_) => {
                    replay.clean_up();
                    self.sent_more()?;
                    self.main = None;
                    if matches!(self.recording, Recording::AsIs(_)) {
                        return Ok(false);
                    }
                }
            }
        }
        self.passes += 1;
        self.pass_sent = 0;
        self.main = Some(match &self.recording {
            Recording::Movable(recording) => {
                let file = self.dir.join(format!("pass-{}.csv", self.passes));
                let start = SystemTime::now();
                recording.write(&file, start, self.speed, "")?;
                self.first_pass.get_or_insert(start);
                self.fleet.replay(&file, "1x", true).map_err(failed)?
            }
            Recording::AsIs(path) => {
                let speed = if self.speed > 0.0 { format!("{}x", self.speed) } else { "max".to_owned() };
                self.fleet.replay(path, &speed, false).map_err(failed)?
            }
        });
        Ok(true)
    }

    /// The next act, which waits for a burst that is still on its way: trouble without work in hand
    /// shows nothing.
    fn due(&mut self, schedule: &mut Schedule, elapsed: Duration) -> Option<Act> {
        let on_its_way = self.bursts.last_mut().is_some_and(|burst| {
            !burst.arrived && burst.since.elapsed() < BURST_ARRIVES_WITHIN && burst.process.ended().is_none()
        });
        if on_its_way { None } else { schedule.due(elapsed) }
    }

    async fn act(&mut self, act: Act) -> Result<(), Failure> {
        match act {
            Act::Burst => {
                let Recording::Movable(recording) = &self.recording else { return Ok(()) };
                let number = self.bursts.len() + 1;
                let file = self.dir.join(format!("burst-{number}.csv"));
                recording.write(&file, SystemTime::now(), self.speed, &format!("burst-{number}-"))?;
                self.screen.say(&story::burst(recording.readings));
                self.bursts.push(self.fleet.replay(&file, "max", true).map_err(failed)?);
            }
            Act::StopSoftly | Act::Kill => {
                let Some(member) = self.fleet.busiest().await else { return Ok(()) };
                let name = member.process.name.clone();
                member.leaving = Some(Instant::now());
                let soft = act == Act::StopSoftly;
                member.process.signal(if soft { Signal::TERM } else { Signal::KILL });
                let replacement = self.fleet.add().map_err(failed)?;
                let told = if soft { story::soft_stop } else { story::kill };
                self.screen.say(&told(&name, &replacement));
            }
        }
        Ok(())
    }

    /// Tells of workers that are gone, replaces those that should not be, and reads what is new.
    pub(super) async fn look_after(&mut self) -> Result<(), Failure> {
        if let Some(status) = self.fleet.gateway.ended() {
            return Err(failed(self.fleet.gateway.error(status)));
        }
        for gone in self.fleet.gone() {
            match gone.told {
                Some(_) => self.tell(&gone),
                None => {
                    let replacement = self.fleet.add().map_err(failed)?;
                    self.screen.say(&story::crashed(&gone.name, &gone.last, &replacement));
                }
            }
        }
        self.sent_more()?;
        self.done_more()
    }

    pub(super) fn tell(&self, gone: &Gone) {
        let (Some(took), Some(receipt)) = (gone.told, &gone.receipt) else { return };
        self.screen.say(&story::stopped(&gone.name, Some(receipt), took));
    }

    pub(super) async fn draw(&mut self) -> Result<(), Failure> {
        let asked: Vec<_> =
            self.fleet.members.iter().map(|m| (m.process.name.clone(), m.admin.clone())).collect();
        for (name, admin) in &asked {
            self.redelivered.ask(&self.http, name, admin).await;
        }
        let held = self.watch.held().await;
        let dead = held.map_or(0, |held| held.dead.saturating_sub(self.dead_before));
        self.idle = held.is_some_and(|held| {
            held.queued + held.retrying + held.quarantine == 0 && self.open.len() as u64 <= dead
        });
        let counts = Counts {
            published: self.sent.len() as u64,
            queued: held.map(|held| held.queued),
            done: self.evidence.executions.len() as u64,
            requeued: self.redelivered.total(),
            dead,
            workers: self.fleet.members.len(),
        };
        self.screen.summary(&self.summary.line(self.started.elapsed(), counts));
        if let Recording::Movable(recording) = &self.recording {
            self.screen.pass(&format!("pass {}", self.passes), self.pass_sent, recording.readings);
        }
        Ok(())
    }
}

pub(super) fn ticks() -> tokio::time::Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn failed(error: ProcessError) -> Failure {
    Failure::new(Exit::Failed, error)
}

/// The folder asked for, or a new one.
fn folder(asked: Option<&Path>) -> anyhow::Result<PathBuf> {
    let dir = match asked {
        Some(dir) => dir.to_owned(),
        None => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
            std::env::temp_dir().join(format!("garenne-demo-{now}-{}", std::process::id()))
        }
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("folder {} cannot be made", dir.display()))?;
    let used = std::fs::read_dir(&dir)?.next().is_some();
    anyhow::ensure!(!used, "folder {} is not empty: an earlier run's logs would be counted", dir.display());
    Ok(dir)
}
