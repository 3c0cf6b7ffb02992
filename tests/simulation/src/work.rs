//! Handlers and a sink that do what the plans of their tasks say.

use std::{
    future::pending,
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

/// A sink that is slow, unavailable, or refuses what it is planned to refuse.
pub(crate) struct PlannedSink {
    client: Client,
    random: Mutex<Random>,
}

impl PlannedSink {
    pub(crate) fn new(client: Client, seed: u64) -> Arc<Self> {
        Arc::new(Self { client, random: Mutex::new(Random::new(seed)) })
    }

    fn chance(&self, per_mille: u16) -> bool {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).chance(per_mille)
    }
}

impl Sink for PlannedSink {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        async {
            let unavailable = |detail: &str| SinkError { sink: self.name(), detail: detail.to_owned() };
            sleep(Duration::from_millis(if self.chance(50) { 1500 } else { 3 })).await;
            if self.chance(50) {
                return Err(unavailable("as planned"));
            }
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
            if self.chance(20) {
                return Err(unavailable("stored, and the answer is lost"));
            }
            Ok(answers)
        }
        .boxed()
    }
}
