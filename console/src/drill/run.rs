//! The drill itself.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context;
use garenne_common::{
    exit::{Exit, Failure},
    task::Kind,
    topology,
};
use rustix::process::Signal;
use tokio::{
    process::Command,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    cli::DrillArgs,
    crew::Crew,
    effects::{self, EFFECTS_FILE},
    plan::{Act, Plan, Step},
    publish::{self, Load, Published},
    report::Report,
    timeline::{Happening, Timeline},
};
use crate::{
    audit::{Audit, Evidence, Expected},
    dead,
    interrupt::interrupts,
    operator::Operator,
    process::{Launcher, ProcessError},
    table::grouped,
};

/// How often everything is looked after.
const TICK: Duration = Duration::from_millis(50);
/// Ticks between two lines.
const TICKS_A_LINE: u64 = 40;
/// How long a broker may take to come back before the drill is called off.
const BROKER_BACK_WITHIN: Duration = Duration::from_secs(300);
/// What an orderly stop at the end may take.
const STOP_WITHIN: Duration = Duration::from_secs(40);

struct Drill<'a> {
    operator: &'a Operator,
    args: &'a DrillArgs,
    dir: PathBuf,
    crew: Crew,
    plan: Plan,
    published: Arc<Published>,
    /// Frozen workers and when they thaw.
    frozen: Vec<(Instant, String)>,
    /// Commands under way, with the happening each belongs to.
    commands: JoinSet<(usize, Result<(), String>)>,
    timeline: Timeline,
    sent: Vec<Expected>,
    open: HashSet<String>,
    evidence: Evidence,
    handed_back: u64,
    crashes: u64,
}

/// Runs the drill.
///
/// # Errors
/// One line and an exit code; [`Exit::Failed`] also when the promise was broken.
pub async fn run(operator: &Operator, args: &DrillArgs, config: Option<&Path>) -> Result<Exit, Failure> {
    let kind = Kind::parse(&args.kind).map_err(|error| Failure::new(Exit::Usage, error))?;
    serde_json::from_str::<serde_json::Value>(&args.payload)
        .map_err(|error| Failure::new(Exit::Usage, format_args!("--payload is no JSON: {error}")))?;
    let mut interrupts = interrupts()?;
    let version = operator.broker.version().await?;
    let connection = operator.connect().await?;
    let ensured = topology::ensure(&connection, &operator.topology(version)).await;
    Operator::leave(connection).await;
    ensured?;
    let dir = folder(args.report.as_deref())?;
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let load = Load {
        broker: operator.broker.clone(),
        names: operator.names.clone(),
        kind,
        payload: args.payload.clone().into_bytes(),
        stem: format!("drill-{}-{run}", args.seed),
        tasks: args.tasks,
        publishers: args.publishers.into(),
        rate: args.rate,
    };
    let mut drill = Drill::start(operator, args, dir, config)?;
    let publishers = publish::start(&load, &drill.published);
    if drill.go(publishers, &mut interrupts).await? {
        eprintln!("interrupted: no account");
        return Ok(Exit::Interrupted);
    }
    drill.account(format!("RabbitMQ {version} at {}", operator.broker.address())).await
}

impl<'a> Drill<'a> {
    fn start(
        operator: &'a Operator,
        args: &'a DrillArgs,
        dir: PathBuf,
        config: Option<&Path>,
    ) -> Result<Self, Failure> {
        let mut launcher = Launcher::new(&dir).map_err(anyhow::Error::from)?;
        operator.pass_on(&mut launcher, config);
        launcher.environment.push((EFFECTS_FILE.into(), dir.join("effects.ndjson").into_os_string()));
        let sinks: &[&str] =
            if operator.settings.postgres_url.is_some() { &["stdout", "postgres"] } else { &["stdout"] };
        let mut crew = Crew::new(launcher, args.worker.clone(), sinks);
        for _ in 0..args.workers {
            crew.add().map_err(failed)?;
        }
        eprintln!(
            "drilling {} workers with {} tasks, seed {}; files in {}",
            args.workers,
            grouped(args.tasks),
            args.seed,
            dir.display()
        );
        Ok(Self {
            operator,
            args,
            dir,
            crew,
            plan: Plan::seeded(args.seed, args.counts()),
            published: Arc::default(),
            frozen: Vec::new(),
            commands: JoinSet::new(),
            timeline: Timeline::starting(SystemTime::now()),
            sent: Vec::new(),
            open: HashSet::new(),
            evidence: Evidence::default(),
            handed_back: 0,
            crashes: 0,
        })
    }

    /// Publishes and troubles until everything is published and done, or nothing gets done any more.
    /// `true` when somebody interrupted.
    async fn go(
        &mut self,
        mut publishers: JoinSet<()>,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<bool, Failure> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last, mut progress) = ((0, usize::MAX), Instant::now());
        let mut away: Option<Instant> = None;
        for tick in 1_u64.. {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = interrupts.recv() => return Ok(true),
            }
            if let Some(refusal) = self.published.refusal() {
                return Err(Failure::new(Exit::Failed, format_args!("nothing can be published: {refusal}")));
            }
            while publishers.try_join_next().is_some() {}
            self.look_after()?;
            let share = self.published.confirmed() as f64 / self.args.tasks as f64;
            while let Some(step) = self.plan.due(share) {
                self.act(step)?;
            }
            if tick.is_multiple_of(TICKS_A_LINE) {
                self.say();
            }
            let now = (self.sent.len(), self.open.len());
            if now != last {
                (last, progress) = (now, Instant::now());
            }
            let quiet = self.frozen.is_empty() && self.commands.is_empty();
            let over = publishers.is_empty() && self.plan.is_over() && quiet && self.open.is_empty();
            if over || (quiet && progress.elapsed() > self.args.patience) {
                return Ok(false);
            }
            // Without a broker nobody can get anything done: patience counts from its return.
            if tick.is_multiple_of(TICKS_A_LINE) && progress.elapsed() > TICK * TICKS_A_LINE as u32 {
                match self.operator.connect().await {
                    Ok(connection) => {
                        Operator::leave(connection).await;
                        away = None;
                    }
                    Err(error) if away.get_or_insert_with(Instant::now).elapsed() > BROKER_BACK_WITHIN => {
                        return Err(error.into());
                    }
                    Err(_) => progress = Instant::now(),
                }
            }
        }
        Ok(false)
    }

    fn say(&self) {
        eprintln!(
            "{:>5.0}s  published {}  done {}  open {}  troubles {}  workers {}",
            self.timeline.seconds(SystemTime::now()),
            grouped(self.sent.len() as u64),
            grouped(self.evidence.executions.len() as u64),
            grouped(self.open.len() as u64),
            self.timeline.happenings.len(),
            self.crew.hands.len()
        );
    }

    fn look_after(&mut self) -> Result<(), Failure> {
        let now = SystemTime::now();
        let fresh = self.published.fresh();
        self.timeline.published(now, fresh.len() as u64);
        for id in fresh {
            if !self.evidence.executions.contains_key(&id) {
                self.open.insert(id.clone());
            }
            self.sent.push(Expected { id, reading: None });
        }
        self.read_logs()?;
        for ended in self.crew.ended().map_err(failed)? {
            self.handed_back += ended.receipt.map_or(0, |receipt| receipt.requeued);
            if !ended.told {
                self.crashes += 1;
                let replacement = self.crew.add().map_err(failed)?;
                eprintln!("{} ended by itself ({}), {replacement} starts", ended.name, ended.how);
                self.happened(None, ended.name, Some(replacement));
            }
        }
        self.frozen.retain(|(thaws, name)| {
            let still = *thaws > Instant::now();
            if !still && let Some(hand) = self.crew.named(name) {
                hand.process.signal(Signal::CONT);
            }
            still
        });
        while let Some(done) = self.commands.try_join_next() {
            let (index, ended) = done.map_err(anyhow::Error::from)?;
            self.timeline.happenings[index].until = self.timeline.seconds(SystemTime::now());
            ended.map_err(|error| Failure::new(Exit::Failed, error))?;
        }
        Ok(())
    }

    fn read_logs(&mut self) -> Result<(), Failure> {
        let now = SystemTime::now();
        for log in self.crew.logs() {
            let lines = log.executions().map_err(anyhow::Error::from)?;
            for (id, execution) in &lines {
                self.open.remove(id);
                self.timeline.executed(execution, now);
            }
            self.evidence.executed(lines);
        }
        Ok(())
    }

    fn act(&mut self, step: Step) -> Result<(), Failure> {
        let Step { act, pick, .. } = step;
        match act {
            Act::Kill | Act::Soft | Act::Hard => {
                let Some(hand) = self.crew.pick(pick) else { return Ok(()) };
                hand.told = true;
                let name = hand.process.name.clone();
                // A frozen one hears nothing but SIGKILL.
                hand.process.signal(Signal::CONT);
                hand.process.signal(match act {
                    Act::Kill => Signal::KILL,
                    Act::Hard => Signal::QUIT,
                    _ => Signal::TERM,
                });
                let replacement = self.crew.add().map_err(failed)?;
                self.happened(Some(act), name, Some(replacement));
            }
            Act::Pause => {
                let Some(hand) = self.crew.pick(pick) else { return Ok(()) };
                hand.process.signal(Signal::STOP);
                let name = hand.process.name.clone();
                self.frozen.push((Instant::now() + self.args.pause_for, name.clone()));
                self.happened(Some(act), name, None);
            }
            Act::BrokerRestart => {
                let restart = self.args.broker_restart.clone().unwrap_or_default();
                self.happened(Some(act), "broker".to_owned(), None);
                self.command(vec![(restart, Duration::ZERO)]);
            }
            Act::Cut => {
                let (cut, heal) = (self.args.cut.clone(), self.args.heal.clone());
                self.happened(Some(act), "network".to_owned(), None);
                self.command(vec![
                    (cut.unwrap_or_default(), self.args.pause_for),
                    (heal.unwrap_or_default(), Duration::ZERO),
                ]);
            }
        }
        Ok(())
    }

    fn happened(&mut self, act: Option<Act>, whom: String, replacement: Option<String>) {
        let at = self.timeline.seconds(SystemTime::now());
        self.timeline.happenings.push(Happening {
            at,
            until: at,
            act,
            whom,
            replacement,
            recovered_after: None,
        });
    }

    /// Runs the user's commands one after the other, waiting after each, beside everything else.
    fn command(&mut self, commands: Vec<(String, Duration)>) {
        let index = self.timeline.happenings.len() - 1;
        self.commands.spawn(async move {
            for (line, wait) in commands {
                if let Err(error) = shell(&line).await {
                    return (index, Err(error));
                }
                tokio::time::sleep(wait).await;
            }
            (index, Ok(()))
        });
    }

    async fn account(mut self, broker: String) -> Result<Exit, Failure> {
        let seconds = self.timeline.seconds(SystemTime::now());
        self.say();
        self.crew.stop(STOP_WITHIN).await;
        for ended in self.crew.ended().map_err(failed)? {
            self.handed_back += ended.receipt.map_or(0, |receipt| receipt.requeued);
        }
        self.read_logs()?;
        let settings = &self.operator.settings;
        let postgres = settings.postgres_url.as_ref().map(|url| url.expose());
        let file = self.dir.join("effects.ndjson");
        let (witness, effects) =
            effects::count(&file, postgres, self.args.effects_sql.as_deref(), &settings.common.prefix)
                .await?;
        self.evidence.effects = effects;
        self.evidence.dead = dead::reasons(self.operator).await?;
        self.timeline.conclude();
        let audit = Audit::of(&self.sent, &self.evidence);
        let mut executions: BTreeMap<usize, u64> = BTreeMap::new();
        for finding in &audit.findings {
            *executions.entry(finding.executions).or_default() += 1;
        }
        let report = Report {
            kept: audit.totals.kept(),
            seed: self.args.seed,
            broker,
            worker: self.args.worker.clone().unwrap_or_else(|| "garenne-worker".to_owned()),
            trouble: self.args.counts(),
            seconds,
            totals: audit.totals,
            witness,
            executions,
            published_again: self.published.again(),
            handed_back: self.handed_back,
            crashes: self.crashes,
            timeline: self.timeline,
        };
        report.write(&audit, &self.dir)?;
        if self.args.json {
            println!("{}", serde_json::to_string_pretty(&report).map_err(anyhow::Error::from)?);
        } else {
            println!("{}", report.table());
            println!("report: {}", self.dir.join("report.html").display());
        }
        if audit.totals.sent == 0 {
            return Err(Failure::new(Exit::Failed, "nothing was published: the account proves nothing"));
        }
        Ok(if report.kept { Exit::Done } else { Exit::Failed })
    }
}

/// Runs a user's command; what it prints goes to stderr.
async fn shell(line: &str) -> Result<(), String> {
    let run = Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .status();
    match run.await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("command {line:?} failed ({status})")),
        Err(error) => Err(format!("command {line:?} cannot be run: {error}")),
    }
}

fn failed(error: ProcessError) -> Failure {
    Failure::new(Exit::Failed, error)
}

/// The folder asked for, or a new one; never one with the logs of an earlier drill, which would count.
fn folder(asked: Option<&Path>) -> anyhow::Result<PathBuf> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let dir = match asked {
        Some(dir) => dir.to_owned(),
        None => std::env::temp_dir().join(format!("garenne-drill-{now}-{}", std::process::id())),
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("folder {} cannot be made", dir.display()))?;
    let used = std::fs::read_dir(&dir)?.next().is_some();
    anyhow::ensure!(!used, "folder {} is not empty: an earlier drill's logs would be counted", dir.display());
    Ok(dir)
}
