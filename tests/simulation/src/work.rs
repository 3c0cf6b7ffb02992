//! Handlers and a sink that do what the plans of their tasks say.

use std::{
    future::pending,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use garenne::{
    TaskContext, TaskError,
    sink::{FinishedTask, Sink, SinkAnswer, SinkError},
};
use tokio::time::sleep;

use crate::{
    mishap::Mishap,
    net::Client,
    plan::{DEADLINE, Does, LONG, SHORT, Work},
    random::Random,
};

garenne::json_payload!(Work, SHORT);

/// A run that ends when it is dropped.
struct Run {
    client: Client,
    number: u64,
    began: Duration,
    is_charged: bool,
}

impl Drop for Run {
    fn drop(&mut self) {
        let has_timed_out = self.client.net.now() >= self.began + DEADLINE;
        self.client
            .net
            .with(|state| state.watch.end(self.number, self.is_charged || has_timed_out, state.broker.now));
    }
}

/// Runs a task. Without a sink its effect takes place here.
pub(crate) async fn run(
    client: Client,
    context: TaskContext,
    work: Work,
    has_sink: bool,
) -> Result<bool, TaskError> {
    let id = context.id().as_str().to_owned();
    let begun = client.with(|state| {
        let (now, is_long) = (state.broker.now, context.kind().as_str() == LONG);
        state.broker.remark(|| format!("attempt {} of {id} starts", context.attempt()));
        let messages = state.broker.ledger.messages_of(&id);
        state.watch.begin(client.owner, (&id, messages), context.attempt(), is_long, now)
    });
    let Some((number, before)) = begun else { return pending().await };
    let mut run = Run { client: client.clone(), number, began: client.net.now(), is_charged: false };
    sleep(Duration::from_millis(work.ms)).await;
    if work.does != Does::Succeed && before < work.times {
        match work.does {
            Does::Succeed => {}
            Does::Retry => {
                run.is_charged = true;
                return Err(TaskError::retry("as planned"));
            }
            Does::Snooze => return Err(TaskError::snooze(Duration::from_millis(700))),
            Does::Panic => {
                run.is_charged = true;
                // No hook prints it.
                std::panic::resume_unwind(Box::new("as planned"));
            }
            Does::Reject => {
                // It spends an attempt: while no queue takes dead letters, the task is put off and runs again.
                run.is_charged = true;
                return Err(TaskError::reject("as planned"));
            }
            Does::Hang => {
                client.with(|state| state.watch.hangs(number, state.broker.now));
                context.token().cancelled().await;
                return Err(TaskError::interrupted());
            }
            Does::Ignore => sleep(2 * DEADLINE).await,
            Does::Crash => {
                client.with(|state| state.crash(client.owner));
                return pending().await;
            }
        }
    }
    if work.follow {
        let payload = Work { ms: 5, does: Does::Succeed, times: 0, follow: false, is_refused: false };
        let follow_up = context.follow_up(SHORT, &payload)?;
        client.with(|state| state.broker.follows(&id, follow_up.as_str()));
    }
    if !has_sink && client.with(|state| state.broker.effect(&id)).is_none() {
        return pending().await;
    }
    Ok(work.is_refused)
}

/// How long a call of the sink hangs: from a time that a stop waits for, to one after which the sink counts as failing.
const HANGS: RangeInclusive<Duration> = Duration::from_secs(4)..=Duration::from_secs(40);

/// A sink that is slow, unavailable, hangs, panics, or refuses what it is planned to refuse.
pub(crate) struct PlannedSink {
    client: Client,
    random: Mutex<Random>,
}

/// How a call of the sink fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    Unavailable,
    Hangs(Duration),
    Panics,
}

/// What a call of the sink does besides writing.
struct Call {
    takes: Duration,
    /// It panics before there is a future.
    panics_at_once: bool,
    /// How it fails before it has stored anything.
    before: Option<Failure>,
    /// How it fails after it has stored the batch: the answer is lost, or late.
    after: Option<Failure>,
}

impl Call {
    /// A hanging call only ends late, so that the sink works again.
    fn plan(random: &mut Random) -> Self {
        let hang = random.between(&HANGS);
        let mut failure = |unavailable| match random.below(1000) {
            it if it < unavailable => Some(Failure::Unavailable),
            990..995 => Some(Failure::Panics),
            995..997 => Some(Failure::Hangs(hang)),
            _ => None,
        };
        let (before, after) = (failure(50), failure(20));
        let takes = Duration::from_millis(if random.chance(50) { 1500 } else { 3 });
        Self { takes, panics_at_once: random.chance(5), before, after }
    }
}

impl PlannedSink {
    pub(crate) fn new(client: Client, seed: u64) -> Arc<Self> {
        Arc::new(Self { client, random: Mutex::new(Random::new(seed)) })
    }

    fn happened(&self, mishap: Mishap) {
        self.client.with(|state| {
            state.broker.remark(|| format!("a call of the sink: {mishap:?}"));
            state.broker.happened(mishap);
        });
    }

    fn panic(&self) -> ! {
        self.happened(Mishap::SinkPanicked);
        // No hook prints it.
        std::panic::resume_unwind(Box::new("as planned"));
    }

    async fn fail(&self, failure: Option<Failure>, detail: &str) -> Result<(), SinkError> {
        match failure {
            None => Ok(()),
            Some(Failure::Unavailable) => Err(SinkError { sink: self.name(), detail: detail.to_owned() }),
            Some(Failure::Hangs(span)) => {
                self.happened(Mishap::SinkHung);
                sleep(span).await;
                Ok(())
            }
            Some(Failure::Panics) => self.panic(),
        }
    }
}

impl Sink for PlannedSink {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        let call = Call::plan(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner));
        if call.panics_at_once {
            self.panic();
        }
        async move {
            sleep(call.takes).await;
            self.fail(call.before, "as planned").await?;
            let answer = |it: &FinishedTask| {
                let id = it.envelope.id.as_str();
                if it.output.json.get() == "true" {
                    self.client.with(|state| state.watch.charge(id));
                    return SinkAnswer::Refused("as planned".into());
                }
                self.client.with(|state| state.broker.effect(id));
                SinkAnswer::Stored
            };
            let answers: Vec<_> = batch.iter().map(answer).collect();
            self.fail(call.after, "stored, and the answer is lost").await?;
            Ok(answers)
        }
        .boxed()
    }
}
