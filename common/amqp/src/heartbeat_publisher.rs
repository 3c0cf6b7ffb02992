//! Publishes heartbeats: the state of a process, at intervals and on request, until it stops.
//!
//! Heartbeats have their own task, so that no other work waits for them, and their own channel, so that a
//! broker that denies the events exchange closes nothing else. A heartbeat that finds no connection is dropped:
//! the next one replaces it. A broker that refuses heartbeats is asked whether their exchange is missing.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_common::{
    random,
    supervise::{self, TaskHandle},
};
use garenne_protocol::heartbeat::{Heartbeat, Stance};
use lapin::BasicProperties;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{
    publisher::{PublishError, Publisher},
    wire::{Message, Target},
};

/// Limit for sending one heartbeat; a slower one is dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after the broker refused a heartbeat: a missing permission is not granted within seconds.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Pause while the exchange is missing. An operator who declares it again sees heartbeats soon.
const MISSING_PAUSE: Duration = Duration::from_secs(10);
/// Shortest time between two heartbeats, also if more are requested.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// Publishes heartbeats until [`HeartbeatPublisher::stop`]. Dropping it ends them without the final heartbeat.
pub struct HeartbeatPublisher {
    /// `None` with an interval of zero.
    task: Option<TaskHandle<()>>,
    sender: Arc<HeartbeatSender>,
}

struct HeartbeatSender {
    publisher: Publisher,
    exchange: String,
    restore: RestoreExchange,
    snapshot: Box<dyn Fn() -> Heartbeat + Send + Sync>,
}

/// Declares the exchange of heartbeats again. Returns why that is not possible.
pub type RestoreExchange = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

impl HeartbeatPublisher {
    /// Starts to publish `snapshot()` to `exchange`: every `interval`, varied by a tenth, and whenever `requested`
    /// is notified. With an interval of zero nothing is ever published. `restore` is called if the exchange is missing.
    pub fn start(
        publisher: Publisher,
        exchange: String,
        interval: Duration,
        requested: Arc<Notify>,
        restore: RestoreExchange,
        snapshot: impl Fn() -> Heartbeat + Send + Sync + 'static,
    ) -> Self {
        let sender = Arc::new(HeartbeatSender { publisher, exchange, restore, snapshot: Box::new(snapshot) });
        let task = (!interval.is_zero()).then(|| {
            let state = (Arc::clone(&sender), requested);
            supervise::restarting("heartbeats", state, move |(sender, requested)| {
                run(sender, interval, requested).boxed()
            })
            .spawn()
        });
        Self { task, sender }
    }

    /// Ends the heartbeats and publishes a final one with [`Stance::Stopped`]. Call it once everything is settled.
    pub async fn stop(self) {
        let Self { task: Some(task), sender } = self else { return };
        task.abort();
        // Waits until no heartbeat is being sent: the final one is the last.
        let _ = task.await;
        let last = Heartbeat { stance: Stance::Stopped, ..(sender.snapshot)() };
        // With a confirm: the connection closes next, and an unconfirmed message may be lost with it.
        match timeout(SEND_TIMEOUT, sender.publisher.publish(sender.message(last))).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "final heartbeat not confirmed"),
            Err(_) => tracing::debug!("final heartbeat not confirmed in time"),
        }
    }
}

impl HeartbeatSender {
    fn message(&self, heartbeat: Heartbeat) -> Message {
        let heartbeat = Heartbeat { denied: self.publisher.denied(), ..heartbeat };
        let body = serde_json::to_vec(&heartbeat).expect("text and numbers");
        // Transient: a heartbeat is worthless after a broker restart.
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_type("heartbeat".into())
            .with_delivery_mode(1);
        let target = Target::announce(self.exchange.clone(), heartbeat.routing_key());
        Message { target, properties, body: body.into() }
    }

    async fn send(&self) -> Result<(), PublishError> {
        let message = self.message((self.snapshot)());
        match timeout(SEND_TIMEOUT, self.publisher.announce(message)).await {
            Ok(sent) => sent,
            Err(_) => Err(PublishError::Blocked),
        }
    }

    /// Declares the exchange again if it is missing. Returns why heartbeats are refused from now on, and how long to wait.
    ///
    /// An exchange that exists at the first refusal may have been declared again since: only a refusal soon after it is one of
    /// a permission.
    async fn restore(&self, refusal: String, is_first: bool) -> (Option<String>, Duration) {
        let exchange = &self.exchange;
        if !self.publisher.is_missing(exchange).await {
            return if is_first { (None, Duration::ZERO) } else { (Some(refusal), REFUSED_PAUSE) };
        }
        match (self.restore)().await {
            Ok(()) => {
                tracing::warn!(exchange, "the exchange of heartbeats was missing and is declared again");
                (None, Duration::ZERO)
            }
            Err(reason) => (Some(format!("exchange {exchange:?} is missing: {reason}")), MISSING_PAUSE),
        }
    }
}

async fn run(sender: &HeartbeatSender, interval: Duration, requested: &Notify) {
    let (mut warned, mut refused_at) = (None, None::<Instant>);
    loop {
        let mut wait = interval.mul_f64(0.9 + random::chance() / 5.0);
        match sender.send().await {
            Ok(()) => {}
            Err(PublishError::AnnounceRefused(refusal)) => {
                let is_first = refused_at.is_none_or(|at| at.elapsed() > 2 * REFUSED_PAUSE.max(interval));
                refused_at = Some(Instant::now());
                let (problem, pause) = sender.restore(refusal, is_first).await;
                if let Some(problem) = problem
                    && warned.as_ref() != Some(&problem)
                {
                    tracing::warn!(problem, "heartbeats refused: the console does not see this process");
                    warned = Some(problem);
                }
                wait = pause.max(interval);
            }
            Err(error) => tracing::trace!(%error, "heartbeat dropped"),
        }
        sleep(MIN_PAUSE.min(wait)).await;
        tokio::select! {
            biased;
            () = sleep(wait.saturating_sub(MIN_PAUSE)) => {}
            () = requested.notified() => {}
        }
    }
}
