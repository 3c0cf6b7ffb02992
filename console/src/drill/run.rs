//! The drill itself.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context;
use garenne_common::exit::{Exit, Failure};
use garenne_protocol::task::Kind;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    cli::DrillArgs,
    crew::Crew,
    effects::EFFECTS_FILE,
    plan::Plan,
    proxy::Proxy,
    publish::{self, Load, Published},
    timeline::Timeline,
    trouble::Trouble,
};
use crate::{
    audit::{Evidence, Expected},
    interrupt::interrupts,
    operator::Operator,
    output,
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
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(40);

/// A drill under way.
pub(super) struct Drill<'a> {
    pub(super) operator: &'a Operator,
    pub(super) args: &'a DrillArgs,
    pub(super) dir: PathBuf,
    pub(super) crew: Crew,
    plan: Plan,
    trouble: Trouble,
    pub(super) published: Arc<Published>,
    pub(super) timeline: Timeline,
    pub(super) sent: Vec<Expected>,
    /// Published and not begun.
    open: HashSet<String>,
    pub(super) evidence: Evidence,
    pub(super) handed_back: u64,
    pub(super) crashes: u64,
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
    let connection = operator.connect().await?;
    let version = operator.broker.version().await?;
    let ensured = garenne_amqp::declare::ensure(&connection, &operator.topology(version)).await;
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
    let mut drill = Drill::start(operator, args, dir, config).await?;
    let publishers = publish::start(&load, &drill.published);
    if drill.go(publishers, &mut interrupts).await? {
        eprintln!("interrupted: no account");
        return Ok(Exit::Interrupted);
    }
    drill.account(format!("RabbitMQ {version} at {}", operator.broker.address())).await
}

impl<'a> Drill<'a> {
    async fn start(
        operator: &'a Operator,
        args: &'a DrillArgs,
        dir: PathBuf,
        config: Option<&Path>,
    ) -> Result<Self, Failure> {
        let mut launcher = Launcher::new(&dir).map_err(anyhow::Error::from)?;
        operator.pass_on(&mut launcher, config);
        launcher.environment.push((EFFECTS_FILE.into(), dir.join("effects.ndjson").into_os_string()));
        let settings = &operator.settings;
        let mut url =
            settings.worker_amqp_url.as_ref().unwrap_or(&settings.common.amqp_url).expose().to_owned();
        let mut proxy = None;
        if args.cuts > 0 {
            let (between, through) = detour(&url).await?;
            (url, proxy) = (through, Some(between));
        }
        // The last one of a name counts.
        launcher.environment.push(("GARENNE_AMQP_URL".into(), url.into()));
        let sinks: &[&str] =
            if settings.postgres_url.is_some() { &["stdout", "postgres"] } else { &["stdout"] };
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
            trouble: Trouble::new(operator, args, proxy),
            published: Arc::default(),
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
                self.trouble.act(step, &mut self.crew, &mut self.timeline).map_err(failed)?;
            }
            if tick.is_multiple_of(TICKS_A_LINE) {
                self.say();
            }
            let now = (self.sent.len(), self.open.len());
            if now != last {
                (last, progress, away) = (now, Instant::now(), None);
            }
            let quiet = self.trouble.is_quiet();
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

    pub(super) fn say(&self) {
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
                output::note(format_args!(
                    "{} ended by itself ({}), {replacement} starts",
                    ended.name, ended.how
                ));
                self.timeline.happened(None, ended.name, Some(replacement));
            }
        }
        self.trouble.look_after(&self.crew, &mut self.timeline)
    }

    pub(super) fn read_logs(&mut self) -> Result<(), Failure> {
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
}

pub(super) fn failed(error: ProcessError) -> Failure {
    Failure::new(Exit::Failed, error)
}

/// A proxy in front of the broker, and the workers' URL through it.
async fn detour(url: &str) -> Result<(Proxy, String), Failure> {
    if !url.starts_with("amqp://") {
        return Err(Failure::new(
            Exit::Usage,
            "--cuts needs an amqp:// URL: the proxy that cuts the network is not what a TLS certificate names",
        ));
    }
    Ok(Proxy::for_url(url).await?)
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
