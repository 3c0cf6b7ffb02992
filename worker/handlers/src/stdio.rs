//! Handlers whose processes stay and ask for tasks.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use garenne::{HeaderValue, TaskContext, TaskError, layer::Task, task::Cause};
use garenne_common::{
    backoff::Backoff,
    lock::lock,
    random,
    supervise::{self, TaskHandle},
};
use humantime::format_rfc3339_millis;
use serde_json::Value;
use tokio::{
    sync::{Notify, Semaphore, oneshot},
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{Answer, DEFERRAL},
    child::{Child, Work},
    frame::{self, CancelReason, Run, TaskHead, ToChild},
    handler::{Handler, Ready},
    logs::Logs,
    metrics::Counters,
    process::Ended,
    settings::HandlerSettings,
};

/// How long a task waits for a process, and which part of the time that is left until its deadline. Then it is deferred.
const LONGEST_WAIT: (Duration, u32) = (Duration::from_secs(2), 10);
/// The same for a task that runs alone: others run before it.
const LONGEST_WAIT_ALONE: (Duration, u32) = (Duration::from_secs(60), 2);
/// A process that ran for so long, or that answered a task, was started well.
const GOOD_START: Duration = Duration::from_secs(10);

/// The pauses between starts that fail.
fn pauses() -> Backoff {
    Backoff::limited(Duration::from_millis(200), Duration::from_secs(30)).with_jitter()
}

/// A handler and its processes.
pub(crate) struct Stdio {
    name: Arc<str>,
    kinds: Vec<String>,
    settings: HandlerSettings,
    processes: u16,
    max_body: usize,
    /// The setting `hard_grace`.
    grace: Duration,
    /// It is while one of the processes runs, or did so a moment ago.
    ready: Ready,
    places: Mutex<BTreeMap<u16, Place>>,
    /// The processes that were replaced, until they have ended.
    replaced: Mutex<Vec<TaskHandle<()>>>,
    asking: Asking,
}

/// The children that asked for a task, once for each request.
#[derive(Default)]
struct Asking {
    children: Mutex<VecDeque<Arc<Child>>>,
    asked: Notify,
    /// Tasks of which one has ended a process that ran several. Each of them runs alone: a child without a task is theirs
    /// before it is others'.
    suspects: AtomicUsize,
    asked_for_suspects: Notify,
}

/// The place of one process.
enum Place {
    Running,
    /// The process before ran well.
    Restarting,
    Failed(String),
}

/// A child that runs.
struct Running {
    child: Arc<Child>,
    following: TaskHandle<Ended>,
    due: Due,
    began: Instant,
}

/// When a child is to be replaced.
struct Due {
    tasks: Option<u64>,
    at: Option<Instant>,
}

impl Stdio {
    pub(crate) fn new(
        name: &str,
        settings: HandlerSettings,
        processes: u16,
        max_body: usize,
        grace: Duration,
    ) -> Self {
        let kinds = settings.kinds(name).into_iter().map(str::to_owned).collect();
        let name = name.into();
        Self {
            ready: Ready::new(&name),
            name,
            kinds,
            settings,
            processes,
            max_body,
            grace,
            places: Mutex::default(),
            replaced: Mutex::default(),
            asking: Asking::default(),
        }
    }

    /// Keeps one process running.
    async fn keep(
        self: &Arc<Self>,
        place: u16,
        counters: &Counters,
        replacing: &Semaphore,
        stopping: &CancellationToken,
    ) {
        let (mut pauses_left, mut last_problem) = (pauses(), None);
        loop {
            let Some(started) = stopping.run_until_cancelled(self.start(counters)).await else { return };
            let ended = match started {
                Err(problem) => {
                    // One problem is logged once, and not for each attempt.
                    if last_problem.as_ref() != Some(&problem) {
                        tracing::error!(handler = %self.name, "a process of the handler cannot start: {problem}");
                        last_problem = Some(problem.clone());
                    }
                    End::Failed(problem)
                }
                Ok(running) => {
                    last_problem = None;
                    self.attend(place, running, counters, replacing, stopping).await
                }
            };
            if stopping.is_cancelled() {
                return;
            }
            let has_left = matches!(ended, End::Left);
            if let End::Failed(problem) = ended {
                self.set(place, Place::Failed(problem), counters);
            } else {
                pauses_left = pauses();
                self.set(place, Place::Restarting, counters);
            }
            if !has_left && stopping.run_until_cancelled(sleep(pauses_left.next_wait())).await.is_none() {
                return;
            }
        }
    }

    /// Attends to a process, and to those that replace it, until one ends by itself or all are to stop.
    async fn attend(
        self: &Arc<Self>,
        place: u16,
        mut running: Running,
        counters: &Counters,
        replacing: &Semaphore,
        stopping: &CancellationToken,
    ) -> End {
        let mut has_asked = false;
        loop {
            let Running { child, following, due, began } = &mut running;
            tokio::select! {
                biased;
                ended = &mut *following => {
                    let ended = ended.unwrap_or(Ended::WithGuardian);
                    return self.account(child, *began, &ended, counters).await;
                }
                () = stopping.cancelled() => {
                    child.dismiss(self.grace).await;
                    let _ = following.await;
                    return End::Left;
                }
                // A process that does not ask is of no use.
                () = child.asks(), if !has_asked => {
                    has_asked = true;
                    self.set(place, Place::Running, counters);
                    continue;
                }
                () = child.idles(self.settings.start_timeout) => {
                    let limit = self.settings.start_timeout;
                    child.violated(format!("it did not ask for a task, or end after its bye, within {limit:?}"));
                    continue;
                }
                () = due.passed(child) => {}
            }
            let replace = async {
                let _turn = replacing.acquire().await;
                // The successor is warm before this one leaves.
                self.start(counters).await
            };
            match stopping.run_until_cancelled(replace).await {
                None => {}
                Some(Ok(successor)) => {
                    let old = std::mem::replace(&mut running, successor);
                    let (this, counters, stopping) = (Arc::clone(self), counters.clone(), stopping.clone());
                    let leaving = async move { this.replaced(old, &counters, &stopping).await };
                    let leaving = supervise::isolated("handler-replaced", leaving).spawn();
                    let mut replaced = lock(&self.replaced);
                    replaced.retain(|leaving| !leaving.is_finished());
                    replaced.push(leaving);
                }
                Some(Err(problem)) => {
                    tracing::warn!(handler = %self.name, "a process of the handler is not replaced, because the next one cannot start: {problem}");
                    running.due = Due::new(&self.settings);
                }
            }
        }
    }

    /// Lets a process that was replaced finish its tasks, and ends it.
    async fn replaced(&self, old: Running, counters: &Counters, stopping: &CancellationToken) {
        let Running { child, mut following, began, .. } = old;
        child.leave();
        let mut work = child.work.subscribe();
        let is_idle = async { drop(work.wait_for(|work| work.running == 0).await) };
        tokio::select! {
            biased;
            ended = &mut following => {
                self.account(&child, began, &ended.unwrap_or(Ended::WithGuardian), counters).await;
                return;
            }
            () = is_idle => {}
            () = stopping.cancelled() => {}
        }
        child.dismiss(self.grace).await;
        let _ = following.await;
    }

    /// Logs and counts how a process ended.
    async fn account(&self, child: &Child, began: Instant, ended: &Ended, counters: &Counters) -> End {
        let Work { answered, running, .. } = *child.work.borrow();
        let has_left = *ended == Ended::Exited(0) && child.said_bye();
        if has_left && answered > 0 {
            return End::Left;
        }
        counters.restarts.inc();
        if matches!(ended, Ended::OutOfMemory { .. }) {
            counters.out_of_memory.inc();
        }
        let end = match has_left {
            true => "said bye before it had answered a task".to_owned(),
            false => child.end(ended).await,
        };
        tracing::warn!(handler = %self.name, answered, running, "a process of the handler {end}");
        let has_run = began.elapsed() >= GOOD_START && !child.has_violated();
        if answered > 0 || has_run { End::Worked } else { End::Failed(format!("it {end}")) }
    }

    /// Starts a process and follows it.
    async fn start(self: &Arc<Self>, counters: &Counters) -> Result<Running, String> {
        let order = self.settings.order(frame::variables(self.max_body), vec![frame::INPUT, frame::OUTPUT]);
        let logs = Logs::new(&self.name, &counters.cut_lines);
        let started = Child::start(
            &order,
            &self.kinds,
            self.settings.start_timeout,
            self.max_body,
            logs,
            counters.clone(),
        );
        let (child, frames) = started.await?;
        let this = Arc::clone(self);
        let following = Arc::clone(&child).follow(frames, move |child| this.asking.add(child));
        let following = supervise::isolated("handler-child", following).spawn();
        Ok(Running { child, following, due: Due::new(&self.settings), began: Instant::now() })
    }

    fn set(&self, place: u16, state: Place, counters: &Counters) {
        let mut places = lock(&self.places);
        places.insert(place, state);
        let running = places.values().filter(|state| matches!(state, Place::Running)).count();
        counters.processes.set(i64::try_from(running).unwrap_or(i64::MAX));
        let is_ready = places.values().any(|state| !matches!(state, Place::Failed(_)));
        match places.get(&place) {
            Some(Place::Failed(problem)) if !is_ready => self.ready.set(Err(problem)),
            _ => self.ready.set(Ok(())),
        }
    }

    /// Runs a task in a child. [`None`] if the child ended because of one of several tasks.
    async fn run_in(
        &self,
        child: Arc<Child>,
        run: &Run,
        context: &TaskContext,
        frame: &[u8],
    ) -> Option<Answer> {
        if child.has(run) {
            // Two messages with one id. The child could not tell their answers apart.
            self.asking.put_back(child);
            return Some(Err(TaskError::snooze(DEFERRAL)));
        }
        let token = context.token();
        let Some(mut answered) = child.expect(run, context.clone()) else {
            // The process has ended since it asked.
            return Some(Err(TaskError::snooze(DEFERRAL)));
        };
        let mut assigned = Assigned { child, run: run.clone(), is_over: false };
        let child = &assigned.child;
        if !child.give(frame, token).await {
            child.forget(run);
            assigned.is_over = true;
            if !token.is_cancelled() {
                return Some(Err(TaskError::snooze(DEFERRAL)));
            }
            self.asking.put_back(Arc::clone(child));
            return Some(Err(TaskError::interrupted()));
        }
        // A child that has read a part of the frame and does not go on is ended, by itself or when the task is cancelled.
        let answer = tokio::select! {
            biased;
            answer = &mut answered => match answer {
                Ok(answer) => Some(answer),
                Err(_) => child.lost(run).await.map(Err),
            },
            () = token.cancelled() => Some(self.stop(&assigned, answered, context.cause()).await),
        };
        assigned.is_over = true;
        answer
    }

    /// Stops a run, whose process ends if it does not answer. The times fit into the grace period of a shutdown.
    async fn stop(
        &self,
        assigned: &Assigned,
        mut answered: oneshot::Receiver<Answer>,
        cause: Option<Cause>,
    ) -> Answer {
        let Assigned { child, run, .. } = assigned;
        let reason = match cause {
            Some(Cause::Deadline) => CancelReason::Deadline,
            Some(Cause::Stopped) => CancelReason::Stopped,
            _ => CancelReason::Shutdown,
        };
        let began = Instant::now();
        let asked = async {
            child.cancel(run, reason).await;
            (&mut answered).await
        };
        let mut answer = timeout_at(began + self.grace / 2, asked).await;
        if answer.is_err() {
            child.terminate(run);
            answer = timeout_at(began + self.grace * 3 / 4, &mut answered).await;
        }
        if answer.is_err() {
            child.kill();
            answer = Ok(answered.await);
        }
        match answer {
            Ok(Ok(answer)) => answer,
            // The place is free when the process has ended.
            _ => {
                child.ended().await;
                Err(TaskError::interrupted())
            }
        }
    }
}

/// How a process ended that is to be started again.
enum End {
    /// On its own account, or because it was told to.
    Left,
    /// It had answered tasks.
    Worked,
    /// It had done nothing, for this reason.
    Failed(String),
}

impl Asking {
    fn add(&self, child: &Arc<Child>) {
        child.work.send_modify(|work| work.asking += 1);
        lock(&self.children).push_back(Arc::clone(child));
        self.asked.notify_one();
        self.asked_for_suspects.notify_waiters();
    }

    /// Takes back the task that a child was to get.
    fn put_back(&self, child: Arc<Child>) {
        child.work.send_modify(|work| {
            work.running = work.running.saturating_sub(1);
            work.is_alone = false;
        });
        self.add(&child);
    }

    /// The child that has waited longest, or the one without a task for a task that runs alone. It counts as running from then on.
    fn next(&self, alone: bool) -> Option<Arc<Child>> {
        let has_suspects = self.suspects.load(Relaxed) > 0;
        let mut children = lock(&self.children);
        children.retain(|child| !child.work.borrow().is_leaving);
        let takes = |child: &Arc<Child>| {
            child.work.send_if_modified(|work| {
                let is_free = if alone { work.running == 0 } else { work.running > 0 || !has_suspects };
                let takes = is_free && !work.is_alone && !work.is_leaving;
                work.running += u32::from(takes);
                work.asking -= u32::from(takes);
                work.is_alone |= takes && alone;
                takes
            })
        };
        let taken = children.iter().position(takes)?;
        children.remove(taken)
    }

    /// Waits for a child that asks, or for one without a task if the task is to run `alone`. Fails if the task is
    /// cancelled before, or there is none for too long: no attempt is spent on the failures of a handler.
    async fn wait(&self, context: &TaskContext, alone: bool) -> Result<Arc<Child>, TaskError> {
        let (notify, (longest, part)) = match alone {
            true => (&self.asked_for_suspects, LONGEST_WAIT_ALONE),
            false => (&self.asked, LONGEST_WAIT),
        };
        let (token, now) = (context.token(), Instant::now());
        let left = context.deadline().map(|at| at.saturating_duration_since(now) / part);
        let limit = now + left.map_or(longest, |left| left.min(longest));
        loop {
            let asked = notify.notified();
            if let Some(child) = self.next(alone) {
                return Ok(child);
            }
            tokio::select! {
                () = asked => {}
                () = token.cancelled() => return Err(TaskError::interrupted()),
                () = sleep_until(limit) => return Err(TaskError::snooze(DEFERRAL)),
            }
        }
    }

    /// The children that ask may be taken by others now.
    fn wake(&self) {
        self.asked_for_suspects.notify_waiters();
        self.asked.notify_waiters();
    }
}

impl Due {
    fn new(settings: &HandlerSettings) -> Self {
        let HandlerSettings { recycle_tasks, recycle_time, .. } = *settings;
        // Processes that started together are not replaced together.
        let spread = 0.9 + random::chance() / 5.0;
        let tasks = (recycle_tasks > 0).then(|| ((recycle_tasks as f64 * spread) as u64).max(1));
        let at = (!recycle_time.is_zero()).then(|| Instant::now() + recycle_time.mul_f64(spread));
        Self { tasks, at }
    }

    /// Waits until the child has run as many tasks as it may, or for as long.
    async fn passed(&self, child: &Child) {
        let tasks = async {
            match self.tasks {
                Some(tasks) => drop(child.work.subscribe().wait_for(|work| work.answered >= tasks).await),
                None => pending().await,
            }
        };
        let time = async {
            match self.at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = tasks => {}
            () = time => {}
        }
    }
}

/// A run that a child has to answer. If nobody waits for the answer any more, the child is killed.
struct Assigned {
    child: Arc<Child>,
    run: Run,
    is_over: bool,
}

impl Drop for Assigned {
    fn drop(&mut self) {
        if !self.is_over {
            self.child.kill();
        }
    }
}

impl Handler for Stdio {
    fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Runs the processes until `stopping` is cancelled.
    async fn serve(self: Arc<Self>, counters: Counters, stopping: CancellationToken) {
        // One process is replaced at a time.
        let replacing = Semaphore::new(1);
        let places = (0..self.processes).map(|place| self.keep(place, &counters, &replacing, &stopping));
        join_all(places).await;
        let replaced = std::mem::take(&mut *lock(&self.replaced));
        join_all(replaced).await;
    }

    async fn run(&self, task: Task) -> Answer {
        let Task { context, body, content_type, .. } = task;
        let run = Run { id: context.id().to_string(), attempt: context.attempt() };
        let child = self.asking.wait(&context, false).await?;
        // Now, because the time that is left is part of it.
        let head = ToChild::Task(Box::new(head(&context, run.clone(), content_type.as_str())));
        let frame = match frame::encode(&head, &body) {
            Ok(frame) => frame,
            Err(error) => {
                self.asking.put_back(child);
                return Err(TaskError::reject(error.to_string()));
            }
        };
        drop(body);
        if let Some(answer) = self.run_in(child, &run, &context, &frame).await {
            return answer;
        }
        // The process ended while it ran several tasks. It is not known which of them ended it, so each is run alone, and
        // what happens then is its own.
        let _suspect = Suspect::new(&self.asking);
        loop {
            let child = self.asking.wait(&context, true).await?;
            if let Some(answer) = self.run_in(child, &run, &context, &frame).await {
                return answer;
            }
        }
    }
}

/// A task that waits for a process of its own, or has one.
struct Suspect<'a>(&'a Asking);

impl<'a> Suspect<'a> {
    fn new(asking: &'a Asking) -> Self {
        asking.suspects.fetch_add(1, Relaxed);
        Self(asking)
    }
}

impl Drop for Suspect<'_> {
    fn drop(&mut self) {
        self.0.suspects.fetch_sub(1, Relaxed);
        self.0.wake();
    }
}

/// What a child learns of a task.
fn head<'a>(context: &'a TaskContext, run: Run, content_type: &'static str) -> TaskHead<'a> {
    let is_own =
        |name: &str| !name.starts_with("garenne-") && !name.starts_with("x-") && !name.starts_with("trace");
    let headers =
        context.headers().filter(|(name, _)| is_own(name)).map(|(name, value)| (name.into(), json(value)));
    let left = context.deadline().map(|at| at.saturating_duration_since(Instant::now()));
    let trace = context.trace();
    TaskHead {
        run,
        kind: context.kind().as_str().into(),
        lane: context.lane().map(Into::into),
        deadline_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        content_type: content_type.into(),
        group: context.group().map(Into::into),
        key: context.key().map(Into::into),
        enqueued_at: context.enqueued_at().map(|time| format_rfc3339_millis(time).to_string()),
        traceparent: trace.as_ref().map(|trace| trace.parent().to_owned()),
        tracestate: trace.as_ref().and_then(|trace| trace.state().map(str::to_owned)),
        headers: headers.collect(),
    }
}

fn json(value: HeaderValue<'_>) -> Value {
    match value {
        HeaderValue::Text(text) => text.into(),
        HeaderValue::Integer(number) => number.into(),
        HeaderValue::Float(number) => number.into(),
        HeaderValue::Bool(value) => value.into(),
        _ => Value::Null,
    }
}
