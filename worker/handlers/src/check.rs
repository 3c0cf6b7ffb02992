//! Checks whether a program keeps to the protocol of handlers, without a broker.

use std::{collections::BTreeSet, fmt, io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use prometheus::IntCounter;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::unix::pipe,
    time::{Instant, sleep, timeout},
};

use crate::{
    frame::{self, FromChild, PROTOCOL, Run},
    logs::Logs,
    process::{Ended, Process},
    settings::{CommandLine, HandlerSettings},
};

/// What is checked, and how.
#[derive(Clone, Debug)]
pub struct Check {
    /// The program.
    pub command: CommandLine,
    /// The kind of the tasks. Unset, the first that the program has, or `check.task`.
    pub kind: Option<String>,
    /// The payload of the tasks.
    pub payload: Value,
    /// How long the program may take to load.
    pub start_timeout: Duration,
    /// How long it may take to answer a task.
    pub task_timeout: Duration,
    /// The largest body, in bytes.
    pub max_body: usize,
}

/// The result of a case.
#[derive(Debug)]
pub struct Checked {
    /// What the program must do.
    pub case: &'static str,
    /// What it did instead.
    pub problem: Option<String>,
}

/// Cases that run at once.
const AT_ONCE: usize = 4;
/// How long a program may take to end, and to act on a cancellation.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a program is watched that must do nothing.
const SILENCE: Duration = Duration::from_millis(300);

type Result<T = ()> = std::result::Result<T, String>;
type Case = fn(Session) -> BoxFuture<'static, Result>;

impl Check {
    /// How many cases there are.
    #[must_use]
    pub fn cases() -> usize {
        CASES.len()
    }

    /// Runs all cases, and passes each result to `report` in the order of the cases. A program that fails the first one, because it
    /// cannot be started or does not say hello, would fail all: the others are not run.
    pub async fn run(self, mut report: impl FnMut(&Checked)) -> Vec<Checked> {
        let check = Arc::new(self);
        let run = |(name, case): (&'static str, Case)| {
            let check = Arc::clone(&check);
            async move {
                let result = match Session::start(&check).await {
                    Ok(session) => {
                        let logs = session.logs.clone();
                        match case(session).await {
                            Ok(()) => Ok(()),
                            Err(problem) => Err(logs.after(&problem).await),
                        }
                    }
                    Err(problem) => Err(problem),
                };
                Checked { case: name, problem: result.err() }
            }
        };
        let (first, others) = CASES.split_at(1);
        let mut all = Vec::new();
        for cases in [first, others] {
            let mut results = pin_box(stream::iter(cases.iter().copied()).map(run).buffered(AT_ONCE));
            while let Some(checked) = results.next().await {
                report(&checked);
                all.push(checked);
            }
            if all[0].problem.is_some() {
                break;
            }
        }
        all
    }
}

fn pin_box<S>(stream: S) -> Pin<Box<S>> {
    Box::pin(stream)
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            None => write!(f, "ok      {}", self.case),
            Some(problem) => write!(f, "FAILED  {}: {problem}", self.case),
        }
    }
}

macro_rules! cases {
    ($($name:literal => $case:ident,)*) => {
        const CASES: &[(&str, Case)] = &[$(($name, |session| $case(session).boxed()),)*];
    };
}

cases! {
    "says hello within the time limit" => hello,
    "asks for a task after its hello" => asks,
    "asks for no more tasks than its concurrency" => asks_no_more,
    "waits in silence without a task" => silent,
    "answers a task" => answers,
    "answers a task once" => answers_once,
    "repeats id and attempt" => repeats,
    "asks again after an answer" => asks_again,
    "runs twenty tasks in a row" => in_a_row,
    "runs as many tasks at once as its concurrency" => at_once,
    "takes an id, a group and a key of any letters" => unicode,
    "takes a payload of any letters" => unicode_payload,
    "takes headers of each type" => headers,
    "takes a trace context" => traced,
    "takes a payload of 64 KiB" => medium,
    "takes the largest payload" => largest,
    "takes an empty object" => empty_object,
    "takes a payload that is no object" => no_object,
    "ignores members that it does not know" => unknown_members,
    "ignores frames of a type that it does not know" => unknown_type,
    "reads a frame that comes byte by byte" => byte_by_byte,
    "reads two frames that come together" => together,
    "takes a task with a deadline of 1 ms" => short_deadline,
    "ignores a cancellation of a run that it never had" => cancel_unknown,
    "ignores a cancellation after its answer" => cancel_late,
    "answers a run that is cancelled, or ends by SIGTERM" => cancel,
    "exits with 0 when it is told to" => bye,
    "exits with 0 when descriptor 3 ends" => end_of_input,
    "answers its task before it exits" => bye_while_running,
    "ends by SIGTERM" => term,
    "leaves no process behind" => leaves_nothing,
}

/// A child under test.
struct Session {
    check: Arc<Check>,
    process: Process,
    input: Option<pipe::Sender>,
    output: BufReader<pipe::Receiver>,
    logs: Logs,
    concurrency: u32,
    kind: String,
    asked: u32,
}

impl Session {
    async fn start(check: &Arc<Check>) -> Result<Self> {
        let failed = |error: io::Error| format!("{:?} cannot be started: {error}", check.command.0[0]);
        let (theirs_in, input) = io::pipe().map_err(failed)?;
        let (output, theirs_out) = io::pipe().map_err(failed)?;
        let settings = HandlerSettings { command: check.command.clone(), ..HandlerSettings::default() };
        let order = settings.order(frame::variables(check.max_body), vec![frame::INPUT, frame::OUTPUT]);
        let cut = IntCounter::new("cut_lines", "Lines that are too long.").expect("a valid name");
        let logs = Logs::new(&"check".into(), &cut);
        let input = pipe::Sender::from_owned_fd(input.into()).map_err(failed)?;
        let output = pipe::Receiver::from_owned_fd(output.into()).map_err(failed)?;
        let process =
            Process::start(&order, vec![theirs_in.into(), theirs_out.into()], &logs).await.map_err(failed)?;
        let output = BufReader::new(output);
        let mut session = Self {
            check: Arc::clone(check),
            process,
            input: Some(input),
            output,
            logs,
            concurrency: 1,
            kind: String::new(),
            asked: 0,
        };
        let hello = match session.frame(check.start_timeout).await {
            Ok(hello) => hello,
            Err(problem) => return Err(session.logs.after(&format!("no hello: {problem}")).await),
        };
        let FromChild::Hello { protocol, kinds, concurrency, .. } = hello.0 else {
            return Err(format!("its first frame is no hello but {}", head(&hello.0)));
        };
        if protocol != PROTOCOL || !(1..=1000).contains(&concurrency) {
            return Err(format!("its hello has protocol {protocol} and concurrency {concurrency}"));
        }
        let kind = check.kind.clone().or_else(|| kinds?.into_iter().next());
        session.kind = kind.unwrap_or_else(|| "check.task".to_owned());
        session.concurrency = concurrency;
        Ok(session)
    }

    /// The next frame.
    async fn frame(&mut self, limit: Duration) -> Result<(FromChild, Bytes)> {
        match timeout(limit, frame::read(&mut self.output, self.check.max_body)).await {
            Ok(Ok(Some(frame))) => Ok(frame),
            Ok(Ok(None)) => Err(format!("it closed descriptor 4, and {}", self.end().await)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("nothing came within {limit:?}")),
        }
    }

    async fn end(&self) -> String {
        match timeout(END_TIMEOUT, self.process.ended()).await {
            Ok(ended) => ended.to_string(),
            Err(_) => "runs on".to_owned(),
        }
    }

    /// Waits until the child asks for a task.
    async fn until_asked(&mut self) -> Result {
        while self.asked == 0 {
            match self.frame(self.check.start_timeout).await? {
                (FromChild::Next, _) => self.asked += 1,
                (FromChild::Log { .. }, _) => {}
                (other, _) => return Err(format!("it does not ask for a task, it says {}", head(&other))),
            }
        }
        self.asked -= 1;
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result {
        let input = self.input.as_mut().ok_or("its descriptor 3 is closed")?;
        match timeout(END_TIMEOUT, input.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("it does not read: {error}")),
            Err(_) => Err(format!("it does not read within {END_TIMEOUT:?}")),
        }
    }

    async fn send(&mut self, head: &Value, body: &[u8]) -> Result {
        let frame = frame::encode(head, body).map_err(|error| error.to_string())?;
        self.write(&frame).await
    }

    /// The head of a task, with these members besides the usual ones.
    fn task(&self, id: &str, more: Value) -> Value {
        let mut head = json!({
            "type": "task", "id": id, "attempt": 1, "kind": self.kind, "lane": "default", "deadline_ms": 60_000,
            "content_type": "application/json", "headers": {},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            head[name] = value.clone();
        }
        head
    }

    fn payload(&self) -> Vec<u8> {
        self.check.payload.to_string().into_bytes()
    }

    /// Waits for the answer to one of the child's runs.
    async fn answer(&mut self) -> Result<Run> {
        let limit = self.check.task_timeout;
        loop {
            let (frame, body) = self.frame(limit).await?;
            let run = match frame {
                FromChild::Done(run) => {
                    if !body.is_empty() && serde_json::from_slice::<Value>(&body).is_err() {
                        return Err("its output is not JSON".to_owned());
                    }
                    run
                }
                FromChild::Retry { run, .. }
                | FromChild::Reject { run, .. }
                | FromChild::Snooze { run, .. } => run,
                FromChild::Next => {
                    self.asked += 1;
                    continue;
                }
                FromChild::Log { .. } | FromChild::Progress { .. } | FromChild::FollowUp { .. } => continue,
                FromChild::Hello { .. } => return Err("a second hello".to_owned()),
                FromChild::Bye => return Err("it left with a task that it has not answered".to_owned()),
            };
            return Ok(run);
        }
    }

    /// Gives the child a task with a head and a body, and waits for its answer.
    async fn give(&mut self, head: &Value, body: &[u8]) -> Result<Run> {
        self.until_asked().await?;
        self.send(head, body).await?;
        let run = self.answer().await?;
        let wanted = Run {
            id: head["id"].as_str().unwrap_or_default().to_owned(),
            attempt: head["attempt"].as_u64().and_then(|n| n.try_into().ok()).unwrap_or_default(),
        };
        if run == wanted {
            Ok(run)
        } else {
            Err(format!("it answered {} instead of {}", named(&run), named(&wanted)))
        }
    }

    /// Gives the child a usual task.
    async fn give_usual(&mut self, id: &str) -> Result {
        let (head, payload) = (self.task(id, json!({})), self.payload());
        self.give(&head, &payload).await.map(drop)
    }

    /// Checks that nothing comes but requests for tasks.
    async fn silence(&mut self) -> Result {
        let end = Instant::now() + SILENCE;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match timeout(left, frame::read::<FromChild>(&mut self.output, self.check.max_body)).await {
                Err(_) => return Ok(()),
                Ok(Ok(Some((FromChild::Next, _)))) => self.asked += 1,
                Ok(Ok(Some((FromChild::Log { .. }, _)))) => {}
                Ok(Ok(Some((frame, _)))) => return Err(format!("it says {}", head(&frame))),
                Ok(Ok(None)) => return Err(format!("it {}", self.end().await)),
                Ok(Err(error)) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    async fn exits(&self) -> Result {
        match timeout(END_TIMEOUT, self.process.ended()).await {
            Ok(Ended::Exited(0)) => Ok(()),
            Ok(ended) => Err(format!("it {ended}")),
            Err(_) => Err(format!("it runs on after {END_TIMEOUT:?}")),
        }
    }
}

/// The head of a frame as it was sent.
fn head(frame: &FromChild) -> String {
    serde_json::to_string(frame).expect("it was read from JSON")
}

fn named(run: &Run) -> String {
    format!("attempt {} of {:?}", run.attempt, run.id)
}

async fn hello(_: Session) -> Result {
    Ok(())
}

async fn asks(mut session: Session) -> Result {
    session.until_asked().await
}

async fn asks_no_more(mut session: Session) -> Result {
    session.silence().await?;
    let (asked, concurrency) = (session.asked, session.concurrency);
    if asked <= concurrency {
        Ok(())
    } else {
        Err(format!("it asked {asked} times, its concurrency is {concurrency}"))
    }
}

async fn silent(mut session: Session) -> Result {
    session.until_asked().await?;
    session.silence().await
}

async fn answers(mut session: Session) -> Result {
    session.give_usual("check-1").await
}

async fn answers_once(mut session: Session) -> Result {
    session.give_usual("check-1").await?;
    session.silence().await
}

async fn repeats(mut session: Session) -> Result {
    let (head, payload) = (session.task("check-7", json!({"attempt": 7})), session.payload());
    session.give(&head, &payload).await.map(drop)
}

async fn asks_again(mut session: Session) -> Result {
    session.give_usual("check-1").await?;
    session.until_asked().await
}

async fn in_a_row(mut session: Session) -> Result {
    for index in 0..20 {
        session.give_usual(&format!("check-{index}")).await?;
    }
    Ok(())
}

async fn at_once(mut session: Session) -> Result {
    let count = session.concurrency.min(50);
    let mut wanted = BTreeSet::new();
    for index in 0..count {
        session.until_asked().await?;
        let (id, payload) = (format!("check-{index}"), session.payload());
        let head = session.task(&id, json!({}));
        session.send(&head, &payload).await?;
        wanted.insert(id);
    }
    for _ in 0..count {
        let run = session.answer().await?;
        if !wanted.remove(&run.id) {
            return Err(format!("it answered {}, which it was not given or has answered", named(&run)));
        }
    }
    Ok(())
}

async fn unicode(mut session: Session) -> Result {
    let id = "\u{e9}\u{1f407} \"\\";
    let (head, payload) =
        (session.task(id, json!({"group": "gr\u{fc}n", "key": "\u{4e2d}"})), session.payload());
    session.give(&head, &payload).await.map(drop)
}

async fn with_body(mut session: Session, body: &[u8]) -> Result {
    let head = session.task("check-1", json!({}));
    session.give(&head, body).await.map(drop)
}

async fn unicode_payload(session: Session) -> Result {
    let body = json!({"text": "\u{e9}\u{1f407}\u{0}\u{2028}", "\u{4e2d}": 1.5e300});
    with_body(session, body.to_string().as_bytes()).await
}

async fn with_members(mut session: Session, members: Value) -> Result {
    let (head, payload) = (session.task("check-1", members), session.payload());
    session.give(&head, &payload).await.map(drop)
}

async fn headers(session: Session) -> Result {
    with_members(session, json!({"headers": {"text": "\u{e9}", "integer": -1, "float": 0.5, "bool": true}}))
        .await
}

async fn traced(session: Session) -> Result {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    with_members(
        session,
        json!({"traceparent": parent, "tracestate": "a=b", "enqueued_at": "2026-01-02T03:04:05.678Z"}),
    )
    .await
}

async fn medium(session: Session) -> Result {
    with_body(session, json!({"pad": "x".repeat(64 << 10)}).to_string().as_bytes()).await
}

async fn largest(session: Session) -> Result {
    let frame = json!({"pad": ""}).to_string().len();
    let body = json!({"pad": "x".repeat(session.check.max_body - frame)}).to_string();
    with_body(session, body.as_bytes()).await
}

async fn empty_object(session: Session) -> Result {
    with_body(session, b"{}").await
}

async fn no_object(session: Session) -> Result {
    with_body(session, b"[1, null, \"a\"]").await
}

async fn unknown_members(session: Session) -> Result {
    with_members(session, json!({"colour": {"red": [1, 2]}})).await
}

async fn unknown_type(mut session: Session) -> Result {
    session.send(&json!({"type": "dance", "id": "check-0"}), b"body").await?;
    session.give_usual("check-1").await
}

async fn byte_by_byte(mut session: Session) -> Result {
    session.until_asked().await?;
    let head = session.task("check-1", json!({}));
    let frame = frame::encode(&head, &session.payload()).map_err(|error| error.to_string())?;
    for byte in frame {
        session.write(&[byte]).await?;
        tokio::task::yield_now().await;
    }
    session.answer().await.map(drop)
}

async fn together(mut session: Session) -> Result {
    session.until_asked().await?;
    let head = session.task("check-1", json!({}));
    let mut frames = frame::encode(&json!({"type": "dance"}), b"").map_err(|error| error.to_string())?;
    frames.extend(frame::encode(&head, &session.payload()).map_err(|error| error.to_string())?);
    session.write(&frames).await?;
    session.answer().await.map(drop)
}

async fn short_deadline(session: Session) -> Result {
    with_members(session, json!({"deadline_ms": 1})).await
}

async fn cancel_unknown(mut session: Session) -> Result {
    session.send(&json!({"type": "cancel", "id": "no-such", "attempt": 1, "reason": "stopped"}), b"").await?;
    session.give_usual("check-1").await
}

async fn cancel_late(mut session: Session) -> Result {
    session.give_usual("check-1").await?;
    session
        .send(&json!({"type": "cancel", "id": "check-1", "attempt": 1, "reason": "deadline"}), b"")
        .await?;
    session.give_usual("check-2").await
}

async fn cancel(mut session: Session) -> Result {
    session.until_asked().await?;
    let (head, payload) = (session.task("check-1", json!({})), session.payload());
    session.send(&head, &payload).await?;
    session
        .send(&json!({"type": "cancel", "id": "check-1", "attempt": 1, "reason": "shutdown"}), b"")
        .await?;
    if timeout(Duration::from_secs(1), session.answer()).await.is_ok_and(|answer| answer.is_ok()) {
        return Ok(());
    }
    session.process.terminate();
    match timeout(END_TIMEOUT, session.process.ended()).await {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("it neither answers nor ends within {END_TIMEOUT:?}")),
    }
}

async fn bye(mut session: Session) -> Result {
    session.until_asked().await?;
    session.send(&json!({"type": "bye"}), b"").await?;
    session.exits().await
}

async fn end_of_input(mut session: Session) -> Result {
    session.until_asked().await?;
    session.input = None;
    session.exits().await
}

async fn bye_while_running(mut session: Session) -> Result {
    session.until_asked().await?;
    let (head, payload) = (session.task("check-1", json!({})), session.payload());
    session.send(&head, &payload).await?;
    session.send(&json!({"type": "bye"}), b"").await?;
    session.answer().await?;
    session.exits().await
}

async fn term(mut session: Session) -> Result {
    session.until_asked().await?;
    session.process.terminate();
    match timeout(END_TIMEOUT, session.process.ended()).await {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("it runs on after {END_TIMEOUT:?}")),
    }
}

/// Its guardian kills what is left, and the worker does not see it. A program that leaves processes after each task runs out of
/// them one day.
async fn leaves_nothing(mut session: Session) -> Result {
    session.give_usual("check-1").await?;
    sleep(SILENCE).await;
    session.input = None;
    session.exits().await
}
