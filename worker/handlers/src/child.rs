//! A child: a process of a handler that stays and asks for tasks.

use std::{
    collections::BTreeMap,
    io,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use garenne::{TaskContext, TaskError, handler};
use garenne_common::lock::lock;
use garenne_protocol::task::matches_binding;
use serde_json::{Value, value::RawValue};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::unix::pipe,
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{Answer, output},
    frame::{self, CancelReason, FollowUp, FromChild, Level, PROTOCOL, Rejection, Run, ToChild},
    guardian::Order,
    logs::Logs,
    metrics::Counters,
    process::{Ended, Process},
};

/// How long a child without another task may take to read a frame. One that is busy may read its pipe later.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a child may take to end after it has closed its descriptor.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long frames are read after the process has exited. Its guardian has closed the pipe then.
const LAST_FRAMES: Duration = Duration::from_millis(100);
/// The most tasks that a child may run at once.
const MOST_TASKS: u32 = 1000;

/// A child that has said hello.
pub(crate) struct Child {
    process: Process,
    input: tokio::sync::Mutex<Input>,
    runs: Mutex<BTreeMap<Run, Pending>>,
    pub(crate) work: watch::Sender<Work>,
    logs: Logs,
    counters: Counters,
    said_bye: AtomicBool,
    /// The run for whose cancellation the process was ended.
    ended_for: OnceLock<Run>,
    violation: OnceLock<String>,
}

/// Where a child reads its frames.
struct Input {
    pipe: pipe::Sender,
    /// Whether a frame is written in part. Then no other can follow.
    is_within_frame: bool,
}

/// What a child does.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    /// Whether it gets no further task.
    pub(crate) is_leaving: bool,
    /// Whether its task is to run alone.
    pub(crate) is_alone: bool,
    /// The tasks that it has asked for and not been given.
    pub(crate) asking: u32,
    /// Tasks that it was given and has not answered.
    pub(crate) running: u32,
    /// The tasks that it had not answered when it ended.
    left: Option<usize>,
    /// Tasks that it has answered.
    pub(crate) answered: u64,
}

/// A run that the child has not answered.
struct Pending {
    answer: oneshot::Sender<Answer>,
    context: TaskContext,
    /// The error of a follow-up that was refused.
    refused: Option<TaskError>,
}

/// What the first frame of a child says.
struct Hello {
    kinds: Option<Vec<String>>,
    concurrency: u32,
}

impl Child {
    /// Starts a child and waits for its hello. Returns it with its next frames, or why there is none, with the last
    /// line that it printed.
    pub(crate) async fn start(
        order: &Order,
        kinds: &[String],
        start_timeout: Duration,
        max_body: usize,
        logs: Logs,
        counters: Counters,
    ) -> Result<(Arc<Self>, Frames), String> {
        let failed = |error: io::Error| format!("cannot start {:?}: {error}", order.command[0]);
        let (theirs_in, input) = io::pipe().map_err(failed)?;
        let (output, theirs_out) = io::pipe().map_err(failed)?;
        let input = pipe::Sender::from_owned_fd(input.into()).map_err(failed)?;
        let output = pipe::Receiver::from_owned_fd(output.into()).map_err(failed)?;
        let process =
            Process::start(order, vec![theirs_in.into(), theirs_out.into()], &logs).await.map_err(failed)?;
        let mut frames = Frames { output: BufReader::new(output), max_body, taken: 0, concurrency: 1 };
        let hello = tokio::select! {
            hello = timeout(start_timeout, frames.hello()) => hello,
            _ = process.ended() => Ok(Ok(None)),
        };
        let hello = match hello {
            Ok(Ok(Some(hello))) => hello.check(kinds),
            // A program that ends closes its descriptors first.
            Ok(Ok(None)) => Err(match timeout(EXIT_TIMEOUT, process.ended()).await {
                Ok(ended) => {
                    counters.out_of_memory.inc_by(u64::from(matches!(ended, Ended::OutOfMemory { .. })));
                    format!("it {ended} before its hello")
                }
                Err(_) => "it closed its descriptor 4 before its hello, and went on".to_owned(),
            }),
            Ok(Err(violation)) => Err(violation),
            Err(_) => Err(format!("it did not say hello within {start_timeout:?}")),
        };
        match hello {
            Ok(hello) => frames.concurrency = hello.concurrency,
            Err(problem) => {
                process.kill();
                process.ended().await;
                return Err(logs.after(&problem).await);
            }
        }
        let child = Self {
            process,
            input: tokio::sync::Mutex::new(Input { pipe: input, is_within_frame: false }),
            runs: Mutex::default(),
            logs,
            counters,
            work: watch::Sender::default(),
            said_bye: AtomicBool::default(),
            ended_for: OnceLock::new(),
            violation: OnceLock::new(),
        };
        Ok((Arc::new(child), frames))
    }

    /// Expects an answer. [`None`] if the child has ended.
    pub(crate) fn expect(&self, run: &Run, context: TaskContext) -> Option<oneshot::Receiver<Answer>> {
        let mut runs = lock(&self.runs);
        if self.work.borrow().left.is_some() {
            return None;
        }
        if runs.is_empty() {
            // What earlier tasks printed is no reason of this one's end.
            self.logs.forget();
        }
        let (answer, answered) = oneshot::channel();
        runs.insert(run.clone(), Pending { answer, context, refused: None });
        Some(answered)
    }

    /// Expects no answer any more.
    pub(crate) fn forget(&self, run: &Run) {
        lock(&self.runs).remove(run);
    }

    /// Gives the child the frame of a task, until `token` is cancelled. A child that runs others reads it when it can, and one that
    /// does not is ended. Returns whether the child may have read some of it.
    pub(crate) async fn give(&self, frame: &[u8], token: &CancellationToken) -> bool {
        tokio::select! {
            biased;
            given = self.write(frame, token) => given,
            () = self.reads_nothing() => {
                self.violated(format!("it did not read a frame within {READ_TIMEOUT:?}"));
                true
            }
        }
    }

    /// Completes when the child has had one task for so long that it should have read it.
    async fn reads_nothing(&self) {
        let mut work = self.work.subscribe();
        loop {
            let _ = work.wait_for(|work| work.running <= 1).await;
            if timeout(READ_TIMEOUT, work.wait_for(|work| work.running > 1)).await.is_err() {
                return;
            }
        }
    }

    /// Completes when the child has asked for a task.
    pub(crate) async fn asks(&self) {
        let _ = self.work.subscribe().wait_for(|work| work.asking > 0 || work.running > 0).await;
    }

    /// Completes when the child has neither run nor asked for a task for so long, or has not ended although it said bye. It
    /// looks now and then: a watch would wake it several times for each task.
    pub(crate) async fn idles(&self, limit: Duration) {
        let (mut looks, mut answered) = (0, 0);
        while looks < 3 {
            sleep(limit / 2).await;
            let work = *self.work.borrow();
            let idles = work.running == 0 && (work.asking == 0 || work.is_leaving);
            looks = if idles && work.answered == answered { looks + 1 } else { u32::from(idles) };
            answered = work.answered;
        }
    }

    /// Ends the process because of what it does.
    pub(crate) fn violated(&self, violation: String) {
        self.counters.violations.inc();
        let _ = self.violation.set(violation);
        self.kill();
    }

    /// Whether the child has a run that it has not answered.
    pub(crate) fn has(&self, run: &Run) -> bool {
        lock(&self.runs).contains_key(run)
    }

    /// Asks the child to stop a run.
    pub(crate) async fn cancel(&self, run: &Run, reason: CancelReason) {
        self.tell(&ToChild::Cancel { run: run.clone(), reason }).await;
    }

    /// Ends the process for the sake of a run that it does not answer, with a signal that it can catch.
    pub(crate) fn terminate(&self, run: &Run) {
        self.leave();
        let _ = self.ended_for.set(run.clone());
        self.process.terminate();
    }

    /// Kills the process, and everything below it.
    pub(crate) fn kill(&self) {
        self.leave();
        self.process.kill();
    }

    /// Gives the child no further task.
    pub(crate) fn leave(&self) {
        self.work.send_modify(|work| work.is_leaving = true);
    }

    pub(crate) async fn ended(&self) -> Ended {
        self.process.ended().await
    }

    /// Whether it did what the protocol does not allow.
    pub(crate) fn has_violated(&self) -> bool {
        self.violation.get().is_some()
    }

    pub(crate) fn said_bye(&self) -> bool {
        self.said_bye.load(Ordering::Relaxed)
    }

    /// Lets the child finish its tasks, and ends it. After `grace` it has ended.
    pub(crate) async fn dismiss(&self, grace: Duration) {
        self.leave();
        let began = Instant::now();
        let farewell = async {
            self.tell(&ToChild::Bye).await;
            self.ended().await;
        };
        if timeout_at(began + grace / 2, farewell).await.is_err() {
            self.process.terminate();
            if timeout_at(began + grace * 3 / 4, self.ended()).await.is_err() {
                self.process.kill();
                self.ended().await;
            }
        }
    }

    /// How the process ended, with the reason.
    pub(crate) async fn end(&self, ended: &Ended) -> String {
        match self.violation.get() {
            Some(violation) => format!("was ended: {violation}"),
            None => self.logs.after(&ended.to_string()).await,
        }
    }

    /// What a run failed by whose child has ended; [`None`] if the child ran others too, so that it is not known.
    pub(crate) async fn lost(&self, run: &Run) -> Option<TaskError> {
        let ended = self.ended().await;
        let left = self.work.subscribe().wait_for(|work| work.left.is_some()).await.map(|work| work.left);
        match self.ended_for.get() {
            // It was ended for another run, which is no failure of this one.
            Some(other) if other != run => Some(TaskError::interrupted()),
            None if left.is_ok_and(|left| left > Some(1)) => None,
            _ => Some(TaskError::retry(format!("the handler's process {}", self.end(&ended).await))),
        }
    }

    /// Writes a message without a body.
    async fn tell(&self, message: &ToChild<'_>) {
        let frame = frame::encode(message, b"").expect("it is small");
        self.write(&frame, &CancellationToken::new()).await;
    }

    /// Writes a frame, until `token` is cancelled. Returns whether the child may have read some of it.
    async fn write(&self, frame: &[u8], token: &CancellationToken) -> bool {
        let Some(mut input) = token.run_until_cancelled(self.input.lock()).await else { return false };
        if input.is_within_frame {
            return false;
        }
        let mut written = 0;
        while written < frame.len() {
            match token.run_until_cancelled(input.pipe.write(&frame[written..])).await {
                Some(Ok(bytes)) if bytes > 0 => written += bytes,
                // It is cancelled, or the process has closed the pipe.
                _ => break,
            }
            input.is_within_frame = written < frame.len();
        }
        written > 0
    }

    /// Acts on the child's frames until it has ended. `asks` is called when it asks for a task.
    pub(crate) async fn follow(self: Arc<Self>, mut frames: Frames, asks: impl Fn(&Arc<Self>)) -> Ended {
        let reading = async {
            loop {
                match frames.next().await {
                    Ok(None) => {
                        // A program that ends closes its descriptors first.
                        let was_leaving = self.work.borrow().is_leaving;
                        self.leave();
                        if !was_leaving && timeout(EXIT_TIMEOUT, self.ended()).await.is_err() {
                            self.violated("it closed its descriptor 4 and went on".to_owned());
                        }
                        return;
                    }
                    Ok(Some((FromChild::Next, _))) => asks(&self),
                    Ok(Some((FromChild::Bye, _))) => {
                        self.said_bye.store(true, Ordering::Relaxed);
                        self.leave();
                    }
                    Ok(Some((frame, body))) => {
                        if self.act(frame, &body) {
                            frames.taken -= 1;
                        }
                    }
                    Err(violation) => return self.violated(violation),
                }
            }
        };
        let mut reading = pin!(reading);
        let ended = tokio::select! {
            () = &mut reading => self.ended().await,
            ended = self.ended() => {
                // An answer that is in the pipe counts.
                let _ = timeout(LAST_FRAMES, reading).await;
                ended
            }
        };
        let mut runs = lock(&self.runs);
        self.work.send_modify(|work| {
            (work.is_leaving, work.running, work.left) = (true, 0, Some(runs.len()));
        });
        // Whoever waits for their answers learns that they are lost.
        runs.clear();
        drop(runs);
        ended
    }

    /// Acts on a frame. Returns whether it ends a run.
    fn act(&self, frame: FromChild, body: &[u8]) -> bool {
        let (run, answer) = match frame {
            FromChild::Done(run) => (run, output(body)),
            FromChild::Retry { run, error, after_ms: None } => (run, Err(TaskError::retry(error))),
            FromChild::Retry { run, error, after_ms: Some(wait) } => {
                (run, Err(TaskError::retry_after(error, Duration::from_millis(wait))))
            }
            FromChild::Reject { run, error, reason: Rejection::Rejected } => {
                (run, Err(TaskError::reject(error)))
            }
            FromChild::Reject { run, error, reason: Rejection::InvalidPayload } => {
                (run, Err(TaskError::invalid(error)))
            }
            FromChild::Snooze { run, after_ms } => {
                (run, Err(TaskError::snooze(Duration::from_millis(after_ms))))
            }
            FromChild::Progress { run, done } => {
                self.with(&run, |pending| pending.context.progress(done));
                return false;
            }
            FromChild::FollowUp { run, task } => {
                self.with(&run, |pending| {
                    if let Err(refused) = request(&pending.context, task, body) {
                        pending.refused.get_or_insert(refused);
                    }
                });
                return false;
            }
            FromChild::Log { level, message, id } => {
                write_log(level, &message, id.as_deref());
                return false;
            }
            // They come elsewhere.
            FromChild::Hello { .. } | FromChild::Next | FromChild::Bye => return false,
        };
        let Some(pending) = lock(&self.runs).remove(&run) else {
            self.counters.ignored.inc();
            return false;
        };
        let answer = match pending.refused {
            Some(refused) if answer.is_ok() => Err(refused),
            _ => answer,
        };
        self.work.send_modify(|work| {
            work.running = work.running.saturating_sub(1);
            work.is_alone = false;
            work.answered += 1;
        });
        let _ = pending.answer.send(answer);
        true
    }

    fn with(&self, run: &Run, act: impl FnOnce(&mut Pending)) {
        match lock(&self.runs).get_mut(run) {
            Some(pending) => act(pending),
            None => self.counters.ignored.inc(),
        }
    }
}

/// The frames of a child.
pub(crate) struct Frames {
    output: BufReader<pipe::Receiver>,
    max_body: usize,
    /// The tasks that the child has asked for and not answered.
    taken: u32,
    concurrency: u32,
}

impl Frames {
    /// The first frame; [`None`] if the child has closed its descriptor.
    async fn hello(&mut self) -> Result<Option<Hello>, String> {
        match frame::read(&mut self.output, self.max_body).await {
            Ok(Some((FromChild::Hello { protocol: PROTOCOL, kinds, concurrency, .. }, _))) => {
                Ok(Some(Hello { kinds, concurrency }))
            }
            Ok(Some((FromChild::Hello { protocol, .. }, _))) => {
                Err(format!("it speaks version {protocol} of the protocol, this worker speaks {PROTOCOL}"))
            }
            Ok(Some(_)) => Err("its first frame is no hello".to_owned()),
            Ok(None) => Ok(None),
            // The process has ended within its hello.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn next(&mut self) -> Result<Option<(FromChild, Bytes)>, String> {
        let frame = match frame::read(&mut self.output, self.max_body).await {
            Ok(frame) => frame,
            // The process has ended within a frame.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(error.to_string()),
        };
        match &frame {
            Some((FromChild::Hello { .. }, _)) => Err("a second hello".to_owned()),
            Some((FromChild::Next, _)) => {
                self.taken += 1;
                match self.taken <= self.concurrency {
                    true => Ok(frame),
                    false => Err(format!("it asked for more than {} tasks at once", self.concurrency)),
                }
            }
            _ => Ok(frame),
        }
    }
}

impl Hello {
    fn check(self, wanted: &[String]) -> Result<Self, String> {
        if !(1..=MOST_TASKS).contains(&self.concurrency) {
            return Err(format!("its concurrency is {}, expected 1 to {MOST_TASKS}", self.concurrency));
        }
        if let Some(kinds) = &self.kinds
            && let Some(missing) =
                wanted.iter().find(|wanted| !kinds.iter().any(|kind| matches_binding(wanted, kind)))
        {
            let known = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
            return Err(format!("it has no function for the kind {missing:?}, only for {known}"));
        }
        Ok(self)
    }
}

fn request(context: &TaskContext, task: FollowUp, body: &[u8]) -> Result<(), TaskError> {
    let refused = |problem: String| TaskError::reject(format!("follow-up {:?}: {problem}", task.kind));
    let payload: &RawValue = match body {
        [] => serde_json::from_slice(b"null"),
        body => serde_json::from_slice(body),
    }
    .map_err(|error| refused(format!("the payload is not JSON: {error}")))?;
    let mut follow_up = handler::FollowUp::new(&task.kind, payload);
    if let Some(id) = &task.task_id {
        follow_up = follow_up.id(id);
    }
    if let Some(delay) = task.delay_ms {
        follow_up = follow_up.delay(Duration::from_millis(delay));
    }
    if let Some(timeout) = task.timeout_ms {
        follow_up = follow_up.timeout(Duration::from_millis(timeout));
    }
    if let Some(key) = task.key {
        follow_up = follow_up.key(key);
    }
    if let Some(group) = task.group {
        follow_up = follow_up.group(group);
    }
    for (name, value) in &task.headers {
        follow_up = match value {
            Value::String(text) => follow_up.header(name, text),
            Value::Bool(value) => follow_up.header(name, *value),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => follow_up.header(name, integer),
                (None, Some(float)) => follow_up.header(name, float),
                (None, None) => return Err(refused(format!("the header {name:?} is out of range"))),
            },
            _ => return Err(refused(format!("the header {name:?} is no text, number or boolean"))),
        };
    }
    context.follow_up_with(follow_up).map(drop)
}

fn write_log(level: Level, message: &str, task: Option<&str>) {
    let task = task.unwrap_or_default();
    match level {
        Level::Error => tracing::error!(task, "{message}"),
        Level::Warn => tracing::warn!(task, "{message}"),
        Level::Info => tracing::info!(task, "{message}"),
        Level::Debug => tracing::debug!(task, "{message}"),
    }
}
