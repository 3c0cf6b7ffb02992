//! Consumes one queue, for as long as the worker wants it, over as many channels as that takes.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream::TryReadyChunksError};
use garenne_amqp::{Backoff, BrokerError};
use lapin::{
    Channel, Consumer,
    options::{BasicCancelOptions, BasicConsumeOptions},
    types::FieldTable,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::{
    ack_writer::{self, AckWriter},
    admission::Admission,
    channel_generation::ChannelGeneration,
    coalescer::{DeliveryCoalescer, TickClock},
    connection::ConsumerConnection,
    counters::SettlementCounters,
    delivery::Delivery,
    reply::{self, ACCESS_REFUSED, NOT_FOUND},
    watchdog::Watchdog,
};
use crate::supervise::{Panics, caught};

/// Whether new messages are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// Yes.
    Open,
    /// Not now: the channel stays, and what was delivered goes on.
    Quiet,
    /// Never again.
    Closed,
}

/// A queue to consume.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) queue: String,
    /// Messages delivered and not settled, at most.
    pub(crate) prefetch: u16,
    /// Shown in the broker's listings.
    pub(crate) tag: String,
    /// When deliveries and decisions that wait for company are looked at.
    pub(crate) clock: TickClock,
}

impl Subscription {
    /// One for each of a lane's queues. They share its prefetch as evenly as it can be divided, so that no
    /// queue takes another's places; there must be one for each at least.
    pub(crate) fn for_queues(queues: Vec<String>, prefetch: u16, tag: &str) -> Vec<Self> {
        let (count, clock) = (queues.len(), TickClock::new(queues.len()));
        let share = |shard: usize| {
            let whole = usize::from(prefetch);
            u16::try_from(whole / count + usize::from(shard < whole % count)).expect("a part of a u16")
        };
        let of = |(shard, queue): (usize, String)| Self {
            queue,
            prefetch: share(shard),
            tag: if shard == 0 { tag.to_owned() } else { format!("{tag}.{shard}") },
            clock,
        };
        queues.into_iter().enumerate().map(of).collect()
    }
}

/// How a channel came to its end.
enum ChannelEnd {
    /// Everything is settled, the channel is closed, nothing more is wanted.
    Drained,
    /// The channel or its connection died.
    Broken(String),
}

/// Consumes one queue until the intake is closed and everything delivered is settled.
pub(crate) struct Subscriber<F> {
    pub(crate) link: ConsumerConnection,
    pub(crate) subscription: Subscription,
    pub(crate) counters: SettlementCounters,
    pub(crate) intake: watch::Receiver<Intake>,
    /// Told why the queue is not being consumed; nothing while it is.
    pub(crate) trouble: watch::Sender<Option<String>>,
    /// Told when the broker denies the first attempt: a right that was never there does not come by
    /// waiting, one that was taken away may come back.
    pub(crate) denied: Option<mpsc::Sender<BrokerError>>,
    /// Takes what was delivered, in order; while it waits nothing more is taken, and the prefetch bounds what
    /// piles up. Answers the message of a panic, where one of the deliveries made it panic.
    pub(crate) accept: F,
    /// The ack_writers of its channels.
    pub(crate) ack_writers: TaskTracker,
    pub(crate) panics: Panics,
}

impl<F, R> Subscriber<F>
where
    F: Fn(Vec<Delivery>) -> R,
    R: Future<Output = Result<(), String>>,
{
    /// Called again after a panic in it, it begins with a new channel.
    pub(crate) async fn run(&mut self) {
        let mut backoff = Backoff::reconnect();
        while wanted(&self.intake) != Intake::Closed {
            let problem = match self.link.channel(self.subscription.prefetch).await {
                Ok((_connection, channel)) => match self.one_epoch(channel, &mut backoff).await {
                    ChannelEnd::Drained => return,
                    ChannelEnd::Broken(problem) => problem,
                },
                Err(error) => error.to_string(),
            };
            let wait = backoff.next_wait();
            tracing::warn!(queue = self.subscription.queue, problem, ?wait, "not consuming, will try again");
            self.trouble.send_replace(Some(problem));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = until(&mut self.intake, |intake| intake == Intake::Closed) => {}
            }
        }
    }

    async fn one_epoch(&mut self, channel: Channel, backoff: &mut Backoff) -> ChannelEnd {
        let batch = ack_writer::batch(&self.subscription);
        let generation = Arc::new(ChannelGeneration::new(self.counters.clone(), batch));
        let (drain, draining) = watch::channel(false);
        let (ours, counters) = (Arc::clone(&generation), self.counters.clone());
        let ack_writer = AckWriter::new(channel.clone(), ours, counters, &self.subscription, draining);
        // An abort of this consumer, or a panic in it, is its ack_writer's end as well.
        let settling = AbortOnDropHandle::new(self.ack_writers.spawn(ack_writer.run(batch)));

        let ended = loop {
            let ended = match wanted(&self.intake) {
                Intake::Closed => break Ok(()),
                Intake::Quiet => self.idle(&channel, &generation).await,
                Intake::Open => match self.start(&channel).await {
                    Ok(consumer) => {
                        self.trouble.send_replace(None);
                        self.denied = None;
                        generation.grant(self.subscription.prefetch);
                        self.consume(&channel, consumer, &generation).await
                    }
                    Err(error) => {
                        match reply::code(&error) {
                            Some(NOT_FOUND) => self.link.mend().await,
                            Some(ACCESS_REFUSED) => {
                                if let Some(tell) = self.denied.take() {
                                    // One lane's word is enough.
                                    let _ = tell.try_send(self.link.explain(&error));
                                }
                            }
                            _ => {}
                        }
                        Err(error.to_string())
                    }
                },
            };
            if ended.is_err() {
                break ended;
            }
        };
        if ended.is_err() {
            generation.end();
        }
        drain.send_replace(true);
        // The ack_writer ends by itself; a panic in it is a bug worth seeing.
        let settled = settling.await;
        // A consumer that the broker accepts may end before it settles anything, again and again.
        if generation.has_settled() {
            backoff.reset();
        }
        match (ended, settled) {
            (Ok(()), Ok(mut unheard)) => match channel.close(200, "drained".into()).await {
                Ok(()) => {
                    unheard.arrived();
                    ChannelEnd::Drained
                }
                Err(error) => ChannelEnd::Broken(error.to_string()),
            },
            (Err(problem), Ok(mut unheard)) => {
                // In the middle of its work a lost connection may or may not have brought the last of them.
                if wanted(&self.intake) != Intake::Closed {
                    unheard.arrived();
                }
                ChannelEnd::Broken(problem)
            }
            (_, Err(panic)) => {
                self.panics.count("settlements");
                ChannelEnd::Broken(format!("the settlement writer ended: {panic}"))
            }
        }
    }

    async fn start(&self, channel: &Channel) -> Result<Consumer, lapin::Error> {
        let Subscription { queue, tag, .. } = &self.subscription;
        let options = BasicConsumeOptions::default();
        channel
            .basic_consume(queue.as_str().into(), tag.as_str().into(), options, FieldTable::default())
            .await
    }

    /// Takes deliveries until another intake is wanted; then cancels and takes what was on its way.
    async fn consume(
        &mut self,
        channel: &Channel,
        consumer: Consumer,
        generation: &Arc<ChannelGeneration>,
    ) -> Result<(), String> {
        let Self { link, subscription, intake, accept, trouble, panics, .. } = self;
        let look = || link.ready_messages(&subscription.queue);
        let mut watchdog = Watchdog::new(subscription.prefetch, Arc::clone(generation), look);
        let mut admission = Admission::new();
        let tag = consumer.tag();
        // Made ours one by one: a burst of the client's own would be moved about once more.
        let unreadable = link.unreadable(&subscription.queue);
        let ours = consumer.map_ok(|message| {
            let delivery = Delivery::new(Arc::clone(generation), message);
            if delivery.unreadable.is_some() {
                unreadable.inc();
            }
            delivery
        });
        let mut bursts = ours.try_ready_chunks(BURST);
        let mut company = DeliveryCoalescer::new(subscription.prefetch, subscription.clock);
        let mut cancelled = false;
        loop {
            let event = tokio::select! {
                biased;
                () = until(intake, |intake| intake != Intake::Open), if !cancelled => Event::Enough,
                burst = in_company(&company, bursts.next()) => Event::Burst(burst),
                () = sleep_until(watchdog.due()), if !cancelled => Event::Look,
                () = generation.over() => return Err("no settlement can be sent any more".into()),
                () = sleep_until(admission.calm().unwrap_or_else(Instant::now)), if admission.calm().is_some() => {
                    admission.calmed();
                    trouble.send_replace(None);
                    continue;
                }
            };
            match event {
                Event::Burst(Some(burst)) => {
                    let (deliveries, error) = match burst {
                        Ok(deliveries) => (deliveries, None),
                        Err(TryReadyChunksError(deliveries, error)) => (deliveries, Some(error)),
                    };
                    company.took(deliveries.len(), deliveries.len() == BURST, Instant::now());
                    let admitted = caught(accept(deliveries)).await.and_then(|admitted| admitted);
                    if let Some(error) = error {
                        return Err(error.to_string());
                    }
                    if let Err(panic) = admitted {
                        panics.count("admission");
                        let wait = admission.panicked(Instant::now());
                        let queue = &subscription.queue;
                        tracing::error!(
                            queue,
                            panic,
                            ?wait,
                            "the admission of a delivery panicked: it goes back"
                        );
                        trouble.send_replace(Some(format!("the admission of a delivery panicked: {panic}")));
                        tokio::time::sleep(wait).await;
                    }
                }
                Event::Burst(None) if cancelled => return Ok(()),
                Event::Burst(None) => {
                    return Err("the broker cancelled the consumer (was the queue deleted?)".into());
                }
                Event::Look => {
                    if watchdog.barks().await {
                        return Err("messages wait, there is credit, and none is delivered".into());
                    }
                }
                Event::Enough => {
                    cancelled = true;
                    let cancel = channel.basic_cancel(tag.clone(), BasicCancelOptions::default());
                    cancel.await.map_err(|error| error.to_string())?;
                }
            }
        }
    }

    /// Waits for another intake, or for the channel to die.
    async fn idle(&mut self, channel: &Channel, generation: &ChannelGeneration) -> Result<(), String> {
        let mut pulse = tokio::time::interval(PULSE);
        loop {
            tokio::select! {
                () = until(&mut self.intake, |intake| intake != Intake::Quiet) => return Ok(()),
                () = generation.over() => return Err("no settlement can be sent any more".into()),
                _ = pulse.tick() => if !channel.status().connected() {
                    return Err("the channel ended while quiet".into());
                }
            }
        }
    }
}

/// Most deliveries that are taken at once: what the client has at hand is passed on together, because each
/// waking of the pool costs as much as several tasks.
const BURST: usize = 64;

/// The next burst, not before its time.
async fn in_company<B>(company: &DeliveryCoalescer, next: impl Future<Output = B>) -> B {
    if let Some(time) = company.wait() {
        sleep_until(time).await;
    }
    next.await
}

/// What a consumer waits for.
enum Event {
    Burst(Option<Result<Vec<Delivery>, TryReadyChunksError<Delivery, lapin::Error>>>),
    Look,
    Enough,
}

/// How often a quiet consumer looks whether its channel lives.
const PULSE: Duration = Duration::from_secs(1);

/// What is wanted now; a worker that is gone wants nothing more.
fn wanted(intake: &watch::Receiver<Intake>) -> Intake {
    if intake.has_changed().is_err() { Intake::Closed } else { *intake.borrow() }
}

async fn until(intake: &mut watch::Receiver<Intake>, holds: impl Fn(Intake) -> bool) {
    // An error means that the worker is gone, which is as good as closed.
    let _ = intake.wait_for(|intake| holds(*intake)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_share_the_prefetch_to_the_last_place() {
        let shares = |queues: usize, prefetch| {
            let names = (0..queues).map(|n| format!("q{n}")).collect();
            let shares = Subscription::for_queues(names, prefetch, "w.fast");
            shares.iter().map(|it| it.prefetch).collect::<Vec<_>>()
        };
        assert_eq!(shares(1, 200), [200]);
        assert_eq!(shares(4, 1000), [250; 4]);
        assert_eq!(shares(3, 200), [67, 67, 66]);
        assert_eq!(shares(4, 4), [1; 4]);
        let tags = Subscription::for_queues(vec!["a".into(), "b".into()], 2, "w.fast");
        assert_eq!([&*tags[0].tag, &*tags[1].tag], ["w.fast", "w.fast.1"]);
    }
}
