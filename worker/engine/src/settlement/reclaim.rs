//! Messages whose queue was deleted while this worker held them: published again, or dead letters at a stop.

use std::sync::Arc;

use garenne_amqp::{Message, Target};
use garenne_common::{backoff::Backoff, clock, shutdown::Tally};
use garenne_protocol::{
    settlement::Settlement,
    task::{Copied, DeadReason, Origin},
};

use super::Settler;
use crate::consumer::{LaneIntake, Orphan};

impl Settler {
    /// Publishes an orphan to `queue` until it is confirmed, or as a dead letter once the worker stops and the queue is
    /// still missing. Does nothing if the broker delivers it again.
    ///
    /// Its settlement was counted as lost, because no channel can send one, and is counted anew.
    pub(crate) fn reclaim(
        self: &Arc<Self>,
        lane: &Arc<str>,
        orphan: Orphan,
        queue: &str,
        mut until: LaneIntake,
        tally: &Arc<Tally>,
    ) {
        let (this, lane, tally) = (Arc::clone(self), Arc::clone(lane), Arc::clone(tally));
        let target = Target::queue(queue.to_owned());
        self.in_background("orphan", async move {
            let Orphan { exchange, routing_key, properties, identity, received_at, body, cancellation } =
                orphan;
            tokio::select! {
                biased;
                again = cancellation.delivers_again(identity) => if again {
                    return;
                },
                () = until.closed() => {}
            }
            drop(cancellation);
            // What is published to a queue is trusted with headers that only workers write.
            let believed = match exchange.as_str() {
                "" => None,
                _ => Origin::Publisher.believable(&properties),
            };
            let properties = believed.map_or(properties, |(properties, _)| properties);
            // A message without a type has its kind from the routing key, if that is no queue.
            let kind = if exchange.as_str().is_empty() { "" } else { routing_key.as_str() };
            let copied = Copied::verbatim(&properties, kind, clock::now())
                .first_seen(received_at)
                .due_after_delay(&properties, received_at);
            let again = Message { target, properties: copied.clone().into_properties(), body: body.clone() };
            let (mut backoff, mut is_last) = (Backoff::default(), false);
            loop {
                let Err(error) = this.publisher.publish(again.clone()).await else {
                    tally.correct(Settlement::LostSettlement, Settlement::Retried, 1);
                    return this.missing.count_reclaimed(&lane, "published again");
                };
                if is_last {
                    break;
                }
                tracing::debug!(%error, queue = again.target.routing_key, "cannot publish an orphan yet");
                this.missing.restore([&again.target]).await;
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(backoff.next_wait()) => {}
                    () = until.closed() => is_last = true,
                }
            }
            let problem = format!("its queue {:?} was deleted while a worker held it", again.target.routing_key);
            let dead = copied.dead(DeadReason::Rejected, &problem, &this.worker, &lane, clock::now());
            let target = Target::queue(this.names.dead());
            let letter = Message { target, properties: dead.into_properties(), body };
            while let Err(error) = this.letters.publish(letter.clone()).await {
                tracing::warn!(%error, "cannot publish an orphan as a dead letter, retrying");
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(backoff.next_wait()) => {}
                    () = this.force_close.cancelled() => {
                        tracing::error!(lane = &*lane, "an orphan is lost: neither its queue nor the dead letters take it");
                        return this.missing.count_reclaimed(&lane, "lost");
                    }
                }
            }
            tally.correct(Settlement::LostSettlement, Settlement::Dead, 1);
            this.missing.count_reclaimed(&lane, "dead");
        });
    }
}
