//! Runs a history: real engines, publishers and operators on the simulated broker.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use garenne_amqp::{Message, Publisher, PublisherConfig, Target};
use garenne_common::{clock, simulation::Simulation};
use garenne_protocol::{
    amqp::BasicProperties,
    task::{Directive, TaskId, epoch_ms},
    topology::Names,
};
use tokio::time::{sleep, sleep_until, timeout};

use crate::{
    connection::Role,
    history::{Action, History, StopMode},
    net::{Client, Net, PublishLink},
    plan::{LONG_LANE, Plan, SHORT_LANE, group_name},
    watch::Watch,
};

mod prepared;
mod slot;

pub use prepared::{Prepared, Report};
use slot::Slot;

/// How long everything may take to end once faults have stopped.
const END_TAKES: Duration = Duration::from_secs(900);
/// How long a confirm may be missing while tasks have not ended, once faults have stopped. Then the connection breaks.
const CONFIRMS_TAKE: Duration = Duration::from_secs(60);
/// How long a worker may take to stop.
const STOP_TAKES: Duration = Duration::from_secs(60);
/// How long after a crash that no step undoes a process is started again.
const RESTART_AFTER: Duration = Duration::from_millis(400);

/// Runs a history until it ends or breaks a rule.
pub fn run(prepared: &Prepared, history: &History, is_traced: bool) -> Report {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true);
    // Without it, tokio wakes those that wait for a `watch` in a random order, and a history repeats itself nearly always.
    #[cfg(tokio_unstable)]
    runtime.rng_seed(tokio::runtime::RngSeed::from_bytes(&history.seed.to_le_bytes()));
    let runtime = runtime.build().expect("a runtime without I/O needs nothing of the system");
    runtime.block_on(async {
        let _simulation = Simulation::begin(history.seed);
        let mut broker = prepared.broker.clone();
        broker.reseed(history.seed);
        if is_traced {
            broker.start_trace();
        }
        let net = Net::new(broker, Watch::default());
        let driving = tokio::spawn(net.clone().drive());
        let mut play = Play::new(prepared, history, net.clone());
        play.all(history).await;
        driving.abort();
        net.with(|state| {
            let mut problems: Vec<_> = state.broker.violations().iter().map(ToString::to_string).collect();
            let noticed = std::mem::take(&mut state.watch.problems);
            problems
                .extend(noticed.iter().map(|(at, text)| format!("{text} (at {:.6} s)", at.as_secs_f64())));
            Report {
                problems,
                trace: state.broker.trace(),
                runs: state.watch.runs(),
                took: state.broker.now,
                mishaps: state.broker.mishaps().clone(),
            }
        })
    })
}

/// What undoes a step.
enum Undo {
    Thaw,
    ClearAlarm,
    Restart(usize),
}

/// A history that runs.
struct Play {
    net: Net,
    seed: u64,
    slots: Vec<Slot>,
    publisher: Publisher,
    operator: Publisher,
    /// Publishes that are not confirmed.
    publishing: tokio::task::JoinSet<()>,
    later: BTreeMap<(Duration, u64), Undo>,
    planned: u64,
}

impl Play {
    fn new(prepared: &Prepared, history: &History, net: Net) -> Self {
        let link = |name| {
            let owner = net.with(|state| state.broker.add_owner(name, Role::Publisher));
            let (client, blocked) = (Client { net: net.clone(), owner }, Arc::default());
            let link = PublishLink::new(client, Arc::clone(&blocked));
            Publisher::simulated(Arc::new(link), blocked, PublisherConfig::default(), None)
        };
        let (publisher, operator) = (link("publisher"), link("operator"));
        let slots = (0..3).map(|number| Slot::new(number, history.seed, &prepared.config)).collect();
        Self {
            net,
            seed: history.seed,
            slots,
            publisher,
            operator,
            publishing: tokio::task::JoinSet::new(),
            later: BTreeMap::new(),
            planned: 0,
        }
    }

    async fn all(&mut self, history: &History) {
        for at in 0..self.slots.len() {
            self.start(at).await;
        }
        for step in &history.steps {
            self.wait_until(step.at).await;
            if self.is_broken() {
                return;
            }
            self.act(&step.action).await;
            self.audit();
        }
        self.end_faults().await;
        if self.until_finished().await {
            self.stop_all().await;
        }
    }

    fn is_broken(&self) -> bool {
        self.net.with(|state| state.is_broken())
    }

    fn problem(&self, text: String) {
        self.net.with(|state| state.watch.problems.push((state.broker.now, text)));
    }

    fn audit(&self) {
        for difference in self.net.with(|state| state.broker.audit()) {
            self.problem(difference);
        }
    }

    /// Waits until this time of the history. What steps planned for earlier happens meanwhile.
    async fn wait_until(&mut self, at: Duration) {
        while !self.is_broken() {
            self.reap().await;
            let next = self.later.first_key_value().map(|(key, _)| key.0).filter(|due| *due <= at);
            let due = self.net.instant(next.unwrap_or(at));
            tokio::select! {
                biased;
                () = self.net.changed() => continue,
                () = sleep_until(due) => {}
            }
            match next.and_then(|_| self.later.pop_first()) {
                Some((_, undo)) => self.undo(undo).await,
                None => return,
            }
        }
    }

    fn plan(&mut self, after: Duration, undo: Undo) {
        self.planned += 1;
        self.later.insert((self.net.now() + after, self.planned), undo);
    }

    async fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Thaw => self.net.with(|state| state.broker.thaw()),
            Undo::ClearAlarm => self.net.with(|state| state.broker.clear_alarm()),
            Undo::Restart(at) => self.start(at).await,
        }
    }

    /// Ends the tasks of processes that crashed, and reads the receipts of workers that stopped.
    async fn reap(&mut self) {
        let crashed = self.net.with(|state| std::mem::take(&mut state.crashed));
        for owner in crashed {
            if let Some(at) = self.slots.iter().position(|slot| slot.owner() == Some(owner)) {
                self.slots[at].crash();
                self.plan(RESTART_AFTER, Undo::Restart(at));
            }
        }
        for slot in &mut self.slots {
            if let Some(problem) = slot.reap(&self.net).await {
                self.net.with(|state| state.watch.problems.push((state.broker.now, problem)));
            }
        }
    }

    async fn start(&mut self, at: usize) {
        self.reap().await;
        self.slots[at].start(&self.net);
    }

    async fn act(&mut self, action: &Action) {
        self.net.with(|state| state.broker.remark(|| format!("step: {action:?}")));
        let now = self.net.now();
        match action {
            Action::Publish(number) => self.publish(*number),
            Action::Stop(at, mode) => self.slots[usize::from(*at)].stop(&self.net, *mode),
            Action::Crash(at) => {
                if let Some(owner) = self.slots[usize::from(*at)].owner() {
                    self.net.with(|state| state.crash(owner));
                }
            }
            Action::CrashAt(at, frames) => {
                if let Some(owner) = self.slots[usize::from(*at)].owner() {
                    self.net.with(|state| state.crash_after(owner, *frames));
                }
            }
            Action::Start(at) => self.start(usize::from(*at)).await,
            Action::Pause(at) => self.slots[usize::from(*at)].pause(true),
            Action::Resume(at) => self.slots[usize::from(*at)].pause(false),
            Action::Arm(at, fault) => {
                if let Some(owner) = self.slots[usize::from(*at)].owner() {
                    self.net.with(|state| state.broker.arm(owner, *fault));
                }
            }
            Action::Fates(at, fates) => {
                if let Some(owner) = self.slots[usize::from(*at)].owner() {
                    self.net.with(|state| state.broker.decide_fates(owner, fates.iter().copied()));
                }
            }
            Action::Disconnect(at) => self.disconnect(usize::from(*at), false),
            Action::KillChannel(at) => self.disconnect(usize::from(*at), true),
            Action::Restart(span) => self.net.with(|state| state.broker.restart(*span)),
            Action::Freeze(span) => {
                self.net.with(|state| state.broker.freeze());
                self.plan(*span, Undo::Thaw);
            }
            Action::Alarm(span) => {
                self.net.with(|state| state.broker.raise_alarm());
                self.plan(*span, Undo::ClearAlarm);
            }
            Action::StopTask(number) => {
                let id = Plan::of(self.seed, *number).id;
                self.net.with(|state| state.watch.task_stopped(&id));
                self.direct(|at| Directive::StopTask { task: id, at });
            }
            Action::StopGroup(group) => {
                self.net.with(|state| state.watch.group_stopped(*group, now));
                self.direct(|at| Directive::StopGroup { group: group_name(*group), at });
            }
            Action::PauseGroup(group) => {
                self.direct(|at| Directive::PauseGroup { pause: group_name(*group), at });
            }
            Action::ResumeGroup(group) => {
                self.direct(|at| Directive::ResumeGroup { resume: group_name(*group), at });
            }
            Action::PauseLane(lane) => {
                self.direct(|at| Directive::PauseLane { pause_lane: lane_name(*lane), at });
            }
            Action::ResumeLane(lane) => {
                self.direct(|at| Directive::ResumeLane { resume_lane: lane_name(*lane), at });
            }
            Action::LimitConsumers(timeout) => {
                self.net.with(|state| state.broker.set_consumer_timeout(*timeout));
            }
            Action::DeleteQueue(lane) => {
                let names = Names::new("garenne");
                self.net.with(|state| {
                    // What is published meanwhile waits there for an operator.
                    state.broker.set_use(&names.unroutable(), true, true);
                    state.delete_queue(&names.lane(&lane_name(*lane)));
                });
            }
        }
    }

    fn disconnect(&self, at: usize, is_channel: bool) {
        let Some(owner) = self.slots[at].owner() else { return };
        self.net.with(|state| {
            let connections = state.broker.connections_of(Some(owner));
            if connections.is_empty() {
                return;
            }
            let connection = *state.broker.random.choose(&connections);
            let channels = state.broker.channels_of(connection);
            match is_channel && !channels.is_empty() {
                true => {
                    let channel = *state.broker.random.choose(&channels);
                    state.broker.kill_channel(channel);
                }
                false => state.broker.kill_connection(connection),
            }
        });
    }

    fn publish(&mut self, number: u32) {
        let (plan, now) = (Plan::of(self.seed, number), clock::now());
        if let Some(group) = plan.group {
            self.net.with(|state| state.watch.grouped(&plan.id, group, state.broker.now));
        }
        if let Some(delay) = plan.delay {
            self.net.with(|state| state.watch.delayed(&plan.id, state.broker.now + delay));
        }
        self.send(&self.publisher.clone(), plan.message(now));
    }

    /// Publishes a directive.
    fn direct(&mut self, directive: impl FnOnce(i64) -> Directive) {
        let body = serde_json::to_vec(&directive(epoch_ms(clock::now()))).expect("it is plain data");
        let target = Target::exchange(Names::new("garenne").control(), Directive::ROUTING_KEY.to_owned());
        let properties = BasicProperties::default()
            .with_message_id(TaskId::random().as_str().into())
            .with_delivery_mode(2);
        self.send(&self.operator.clone(), Message { target, properties, body: body.into() });
    }

    /// Publishes a message until it is confirmed.
    fn send(&mut self, publisher: &Publisher, message: Message) {
        let publisher = publisher.clone();
        self.publishing.spawn(async move {
            while publisher.publish(message.clone()).await.is_err() {
                sleep(Duration::from_millis(300)).await;
            }
        });
    }

    /// Undoes what is not undone yet. What waits for a frame may still happen.
    async fn end_faults(&mut self) {
        self.net.with(|state| {
            state.broker.remark(|| "no more faults".to_owned());
            state.broker.thaw();
            state.broker.clear_alarm();
            state.spare_all();
        });
        self.later.retain(|_, undo| matches!(undo, Undo::Restart(_)));
        for group in 0..3 {
            self.direct(|at| Directive::ResumeGroup { resume: group_name(group), at });
        }
        for lane in 0..2 {
            self.direct(|at| Directive::ResumeLane { resume_lane: lane_name(lane), at });
        }
        self.slots.iter().for_each(|slot| slot.pause(false));
    }

    /// Waits until every task has ended. Returns whether it has.
    async fn until_finished(&mut self) -> bool {
        let until = self.net.now() + END_TAKES;
        loop {
            let next = self.net.now() + Duration::from_millis(500);
            self.wait_until(next).await;
            if self.is_broken() {
                return false;
            }
            while self.publishing.try_join_next().is_some() {}
            for at in 0..self.slots.len() {
                self.start(at).await;
            }
            let unfinished = self.net.with(|state| {
                state.broker.end_waits_for_confirms(CONFIRMS_TAKE);
                state.broker.unfinished()
            });
            if unfinished.is_empty() && self.publishing.is_empty() {
                return true;
            }
            if self.net.now() > until {
                self.problem(format!(
                    "after {END_TAKES:?} without faults these have not ended: {unfinished:?}"
                ));
                return false;
            }
        }
    }

    /// Stops all workers, and checks that they leave nothing.
    async fn stop_all(&mut self) {
        // What was delivered twice may still run.
        self.wait_until(self.net.now() + Duration::from_secs(30)).await;
        let modes = [StopMode::Light, StopMode::Soft, StopMode::SoftTimeout, StopMode::Hard];
        let mode = modes[(self.seed % 4) as usize];
        for slot in &mut self.slots {
            slot.stop(&self.net, mode);
        }
        let until = self.net.now() + STOP_TAKES;
        while !self.is_broken() && self.slots.iter().any(Slot::is_running) {
            self.reap().await;
            let _ = timeout(Duration::from_millis(50), self.net.changed()).await;
            if self.net.now() > until {
                return self.problem(format!("a worker has not stopped after {STOP_TAKES:?}: {mode:?}"));
            }
        }
        self.audit();
    }
}

fn lane_name(lane: u8) -> String {
    [LONG_LANE, SHORT_LANE][usize::from(lane) % 2].to_owned()
}
