//! Does to the fleet what the plan says.

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::Broker;
use garenne_common::{
    exit::{Exit, Failure},
    telemetry::metrics::Role,
};
use rustix::process::Signal;
use tokio::{
    process::Command,
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    cli::DrillArgs,
    crew::Crew,
    plan::{Act, Step},
    proxy::Proxy,
    timeline::Timeline,
};
use crate::{operator::Operator, process::ProcessError};

/// How long a broker may take to come back before the drill is called off.
const BROKER_BACK_WITHIN: Duration = Duration::from_secs(300);
/// Between two looks whether it is back.
const LOOK: Duration = Duration::from_millis(20);

/// What is being done to the fleet, and what is still going on.
pub(super) struct Trouble {
    broker: Broker,
    restart: String,
    lasting: Duration,
    /// Between the workers and the broker, where their network is to be cut.
    proxy: Option<Arc<Proxy>>,
    /// Frozen workers and when they thaw.
    frozen: Vec<(Instant, String)>,
    /// Restarts and cuts, with the happening each belongs to.
    under_way: JoinSet<(usize, Result<Spell, String>)>,
    /// They come one after the other, however close the plan has them.
    turn: Arc<Mutex<()>>,
}

/// From when until when something was away.
struct Spell {
    from: SystemTime,
    until: SystemTime,
}

impl Trouble {
    pub(super) fn new(operator: &Operator, args: &DrillArgs, proxy: Option<Proxy>) -> Self {
        Self {
            broker: operator.broker.clone(),
            restart: args.broker_restart.clone().unwrap_or_default(),
            lasting: args.pause_for,
            proxy: proxy.map(Arc::new),
            frozen: Vec::new(),
            under_way: JoinSet::new(),
            turn: Arc::default(),
        }
    }

    /// Whether nothing goes on that keeps tasks from being done.
    pub(super) fn is_quiet(&self) -> bool {
        self.frozen.is_empty() && self.under_way.is_empty()
    }

    /// Does one act and writes it down.
    ///
    /// # Errors
    /// A worker to take another's place cannot be started.
    pub(super) fn act(
        &mut self,
        step: Step,
        crew: &mut Crew,
        timeline: &mut Timeline,
    ) -> Result<(), ProcessError> {
        let Step { act, pick, .. } = step;
        match act {
            Act::Kill | Act::Soft | Act::Hard => {
                let Some(hand) = crew.pick(pick) else { return Ok(()) };
                hand.told = true;
                let name = hand.process.name.clone();
                // A frozen one hears nothing but SIGKILL.
                hand.process.signal(Signal::CONT);
                hand.process.signal(match act {
                    Act::Kill => Signal::KILL,
                    Act::Hard => Signal::QUIT,
                    _ => Signal::TERM,
                });
                let replacement = crew.add()?;
                timeline.happened(Some(act), name, Some(replacement));
            }
            Act::Pause => {
                let Some(hand) = crew.pick(pick) else { return Ok(()) };
                hand.process.signal(Signal::STOP);
                let name = hand.process.name.clone();
                self.frozen.push((Instant::now() + self.lasting, name.clone()));
                timeline.happened(Some(act), name, None);
            }
            Act::BrokerRestart => {
                let index = timeline.happened(Some(act), "broker".to_owned(), None);
                let (turn, line, broker) =
                    (Arc::clone(&self.turn), self.restart.clone(), self.broker.clone());
                self.under_way.spawn(async move {
                    let _alone = turn.lock().await;
                    (index, restarted(&line, &broker).await)
                });
            }
            Act::Cut => {
                let Some(proxy) = self.proxy.clone() else { return Ok(()) };
                let index = timeline.happened(Some(act), "network".to_owned(), None);
                let (turn, lasting) = (Arc::clone(&self.turn), self.lasting);
                self.under_way.spawn(async move {
                    let _alone = turn.lock().await;
                    (index, Ok(cut(&proxy, lasting).await))
                });
            }
        }
        Ok(())
    }

    /// Thaws whose time has come, and writes down what is over.
    ///
    /// # Errors
    /// The broker did not come back.
    pub(super) fn look_after(&mut self, crew: &Crew, timeline: &mut Timeline) -> Result<(), Failure> {
        self.frozen.retain(|(thaws, name)| {
            let still = *thaws > Instant::now();
            if !still && let Some(hand) = crew.named(name) {
                hand.process.signal(Signal::CONT);
            }
            still
        });
        while let Some(over) = self.under_way.try_join_next() {
            let (index, spell) = over.map_err(anyhow::Error::from)?;
            let spell = spell.map_err(|error| Failure::new(Exit::Failed, error))?;
            timeline.lasted(index, spell.from, spell.until);
        }
        Ok(())
    }
}

/// Lets no byte pass, then resets what is open: as when a network is split and whoever joined it again
/// has forgotten its connections.
async fn cut(proxy: &Proxy, lasting: Duration) -> Spell {
    let from = SystemTime::now();
    proxy.stall();
    sleep(lasting).await;
    proxy.drop_connections();
    proxy.heal();
    Spell { from, until: SystemTime::now() }
}

/// Runs the command and waits until the broker takes connections again.
async fn restarted(line: &str, broker: &Broker) -> Result<Spell, String> {
    let from = SystemTime::now();
    shell(line).await?;
    let give_up = Instant::now() + BROKER_BACK_WITHIN;
    loop {
        // Whoever was as quick as we are connected at this moment too, and not when we were done.
        let until = SystemTime::now();
        match broker.connect(Role::Operate).await {
            Ok(connection) => {
                Operator::leave(connection).await;
                return Ok(Spell { from, until });
            }
            Err(error) if Instant::now() > give_up => return Err(error.to_string()),
            Err(_) => sleep(LOOK).await,
        }
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
