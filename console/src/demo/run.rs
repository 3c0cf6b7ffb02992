//! The demo itself: start, feed, make trouble, drain, account.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use garenne_common::{
    exit::{Exit, Failure},
    topology,
};
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
    audit::{Audit, Evidence, Expected, Store, totals_table, write_findings},
    dead,
    interrupt::interrupts,
    operator::Operator,
    process::{Launcher, ProcessError},
};

/// How often children are looked after.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two summary lines.
const TICKS_A_LINE: u64 = 10;
/// A drain that makes no progress for this long is over.
const STALLED: Duration = Duration::from_secs(20);
/// How long a replay may take to finish what it has under way.
const REPLAY_ENDS_WITHIN: Duration = Duration::from_secs(15);
/// A burst's first receipts, at the latest.
const BURST_ARRIVES_WITHIN: Duration = Duration::from_secs(3);
/// A worker that does not answer its admin port in this time answers next second.
const ADMIN_PATIENCE: Duration = Duration::from_millis(300);

struct Demo<'o> {
    operator: &'o Operator,
    dir: PathBuf,
    recording: Recording,
    speed: f64,
    http: reqwest::Client,
    screen: Screen,
    fleet: Fleet,
    main: Option<Replay>,
    bursts: Vec<Replay>,
    passes: u64,
    pass_sent: u64,
    watch: BrokerWatch<'o>,
    dead_before: u64,
    redelivered: Redelivered,
    summary: Summary,
    started: Instant,
    sent: Vec<Expected>,
    /// Acknowledged and in no execution log yet.
    open: HashSet<String>,
    evidence: Evidence,
    /// Nothing is left that could still be done.
    idle: bool,
}

/// Runs the demo.
///
/// # Errors
/// One line and an exit code; [`Exit::Failed`] also when the account is not balanced.
pub async fn run(operator: &Operator, args: &DemoArgs, config: Option<&Path>) -> Result<Exit, Failure> {
    let recording = Recording::open(args.recording.as_deref())?;
    let connection = operator.connect().await?;
    let wanted = operator.topology(operator.broker.version().await?);
    let ensured = topology::ensure(&connection, &wanted).await;
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
                let speed = args.speed.unwrap_or(recording.span.as_secs_f64() / PASS.as_secs_f64()).max(1e-6);
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
        let broker = operator.management.as_ref().map(crate::management::Management::address);
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
                recording.write(&file, SystemTime::now(), self.speed, "")?;
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
    async fn look_after(&mut self) -> Result<(), Failure> {
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

    fn tell(&self, gone: &Gone) {
        let (Some(took), Some(receipt)) = (gone.told, &gone.receipt) else { return };
        self.screen.say(&story::stopped(&gone.name, Some(receipt), took));
    }

    /// Reads new receipts.
    fn sent_more(&mut self) -> Result<(), Failure> {
        let mut new = Vec::new();
        if let Some(main) = &mut self.main {
            new = main.receipts.receipts().map_err(anyhow::Error::from)?;
            self.pass_sent += new.len() as u64;
        }
        for burst in &mut self.bursts {
            let arrived = burst.receipts.receipts().map_err(anyhow::Error::from)?;
            burst.arrived |= !arrived.is_empty();
            new.extend(arrived);
            if burst.process.ended().is_some() {
                burst.clean_up();
            }
        }
        for expected in new {
            if !self.evidence.executions.contains_key(&expected.id) {
                self.open.insert(expected.id.clone());
            }
            self.sent.push(expected);
        }
        Ok(())
    }

    /// Reads new lines of the execution logs.
    fn done_more(&mut self) -> Result<(), Failure> {
        let logs = self.fleet.members.iter_mut().map(|member| &mut member.log);
        for log in logs.chain(&mut self.fleet.old_logs) {
            let lines = log.executions().map_err(anyhow::Error::from)?;
            for (id, _) in &lines {
                self.open.remove(id);
            }
            self.evidence.executed(lines);
        }
        Ok(())
    }

    async fn draw(&mut self) -> Result<(), Failure> {
        let asked: Vec<_> =
            self.fleet.members.iter().map(|m| (m.process.name.clone(), m.admin.clone())).collect();
        for (name, admin) in &asked {
            self.redelivered.ask(&self.http, name, admin).await;
        }
        let held = self.watch.held().await;
        let dead = held.map_or(0, |held| held.dead.saturating_sub(self.dead_before));
        self.idle = held.is_some_and(|held| {
            held.queued + held.retrying + held.suspect == 0 && self.open.len() as u64 <= dead
        });
        let counts = Counts {
            published: self.sent.len() as u64,
            queued: held.map(|held| held.queued),
            done: self.evidence.executions.len() as u64,
            requeued: self.redelivered.total(),
            dead,
            workers: self.fleet.members.len(),
        };
        self.screen.summary(self.summary.line(self.started.elapsed(), counts));
        if let Recording::Movable(recording) = &self.recording {
            self.screen.pass(&format!("pass {}", self.passes), self.pass_sent, recording.readings);
        }
        Ok(())
    }

    /// Waits until everything acknowledged is done, stops the fleet and accounts for every reading.
    async fn account(
        mut self,
        store: Option<Store>,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<Exit, Failure> {
        let finish = async {
            self.end_replays().await?;
            self.screen.say("\n>> No more readings: the workers finish what is queued.");
            self.drain().await?;
            self.screen.end();
            for gone in self.fleet.stop().await {
                self.tell(&gone);
            }
            self.done_more()
        };
        tokio::select! {
            finished = finish => finished?,
            _ = interrupts.recv() => {
                self.screen.end();
                eprintln!("interrupted again: no account");
                return Ok(Exit::Interrupted);
            }
        }
        if let Some(store) = store {
            let effects = store.effects(&self.sent).await.map_err(anyhow::Error::from)?;
            self.evidence.effects = Some(effects);
        }
        if !self.idle || !self.open.is_empty() {
            self.evidence.dead = dead::reasons(self.operator).await?;
        }
        let audit = Audit::of(&self.sent, &self.evidence);
        let file = self.dir.join("audit.ndjson");
        write_findings(&audit, &file).with_context(|| format!("{} cannot be written", file.display()))?;
        println!("\nThe account of every reading the gateway acknowledged:");
        print!("{}", totals_table(&audit.totals, "readings", "stored"));
        println!("  one line per reading: {}", file.display());
        self.watch.leave().await;
        if audit.totals.sent == 0 {
            return Err(Failure::new(Exit::Failed, "nothing was sent: the account proves nothing"));
        }
        Ok(if audit.totals.kept() { Exit::Done } else { Exit::Failed })
    }

    async fn end_replays(&mut self) -> Result<(), Failure> {
        for replay in self.main.iter_mut().chain(&mut self.bursts) {
            replay.process.signal(Signal::TERM);
            replay.process.end_within(REPLAY_ENDS_WITHIN).await;
            replay.clean_up();
        }
        self.sent_more()
    }

    async fn drain(&mut self) -> Result<(), Failure> {
        let mut ticks = ticks();
        let (mut least, mut progress) = (usize::MAX, Instant::now());
        for tick in 1_u64.. {
            ticks.tick().await;
            self.look_after().await?;
            if tick.is_multiple_of(TICKS_A_LINE) {
                self.draw().await?;
            }
            if self.open.len() < least {
                (least, progress) = (self.open.len(), Instant::now());
            }
            if self.open.is_empty()
                || (self.idle && progress.elapsed() > STALLED / 4)
                || progress.elapsed() > STALLED
            {
                self.draw().await?;
                return Ok(());
            }
        }
        Ok(())
    }
}

fn ticks() -> tokio::time::Interval {
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
