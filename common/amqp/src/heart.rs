//! Heartbeats: what a process says of itself, at intervals and when asked, for as long as it runs.
//!
//! A task of its own: nothing that works waits for it. A beat that finds no connection is dropped; the
//! next one says more. Its channel is its own too, so that a broker that denies the events exchange
//! closes nothing else.

use std::{sync::Arc, time::Duration};

use garenne_protocol::heartbeat::{Heartbeat, Stance};
use lapin::BasicProperties;
use rand::Rng;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    publisher::{PublishError, Publisher},
    wire::{Message, Target},
};

/// A beat that could not be handed over in this time is dropped.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a heart is silent after the broker refused a beat: a right does not come every second.
const REFUSED: Duration = Duration::from_secs(60);
/// Between two beats that were asked for.
const LEAST: Duration = Duration::from_millis(100);

/// Beats until it is stopped; dropped, it stops without a word.
pub struct Heart {
    beating: JoinSet<()>,
    mouth: Arc<Mouth>,
}

struct Mouth {
    publisher: Publisher,
    exchange: String,
    look: Box<dyn Fn() -> Heartbeat + Send + Sync>,
}

impl Heart {
    /// Says what `look` sees to `exchange` every so often, never where `every` is zero, and whenever
    /// `asked` is notified.
    pub fn start(
        publisher: Publisher,
        exchange: String,
        every: Duration,
        asked: Arc<Notify>,
        look: impl Fn() -> Heartbeat + Send + Sync + 'static,
    ) -> Self {
        let mouth = Arc::new(Mouth { publisher, exchange, look: Box::new(look) });
        let mut beating = JoinSet::new();
        if !every.is_zero() {
            beating.spawn(beat(Arc::clone(&mouth), every, asked));
        }
        Self { beating, mouth }
    }

    /// Ends the beats and says good-bye: everything is settled.
    pub async fn stop(self) {
        let Self { mut beating, mouth } = self;
        if beating.is_empty() {
            return;
        }
        beating.shutdown().await;
        let last = Heartbeat { stance: Stance::Stopped, ..(mouth.look)() };
        // Confirmed: what is only sent may go down with the connection that closes next.
        match timeout(PATIENCE, mouth.publisher.publish(mouth.message(&last))).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "no good-bye was heard"),
            Err(_) => tracing::debug!("no good-bye was heard in time"),
        }
    }
}

impl Mouth {
    fn message(&self, beat: &Heartbeat) -> Message {
        let body = serde_json::to_vec(beat).expect("text and numbers");
        // Transient: a beat that nobody hears is worth nothing.
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_type("heartbeat".into())
            .with_delivery_mode(1);
        let target = Target::announce(self.exchange.clone(), beat.routing_key());
        Message { target, properties, body: body.into() }
    }

    async fn say(&self) -> Result<(), PublishError> {
        let message = self.message(&(self.look)());
        match timeout(PATIENCE, self.publisher.announce(message)).await {
            Ok(said) => said,
            Err(_) => Err(PublishError::Blocked),
        }
    }
}

async fn beat(mouth: Arc<Mouth>, every: Duration, asked: Arc<Notify>) {
    let mut warned = false;
    loop {
        let mut wait = every.mul_f64(rand::rng().random_range(0.9..1.1));
        match mouth.say().await {
            Ok(()) => {}
            Err(PublishError::Unheard(problem)) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(problem, "the console does not see this process");
                }
                wait = REFUSED.max(every);
            }
            Err(error) => tracing::trace!(%error, "a heartbeat was dropped"),
        }
        sleep(LEAST.min(wait)).await;
        tokio::select! {
            () = sleep(wait.saturating_sub(LEAST)) => {}
            () = asked.notified() => {}
        }
    }
}
