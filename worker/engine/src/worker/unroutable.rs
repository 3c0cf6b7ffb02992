//! Watches the exchange and the queue of messages that no lane takes.
//!
//! Nothing of a fleet consumes the queue, and the broker confirms a message that it drops because the exchange or the queue
//! is missing. So no other part of a worker would notice.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use garenne_amqp::Target;
use garenne_common::{random, supervise};
use tokio::time::sleep;

use crate::settlement::Settler;

/// Checks both until the worker has ended, at a mean interval of six `heartbeats`. Each worker of a fleet makes the checks.
pub(super) fn watch(settler: &Arc<Settler>, heartbeats: Duration) {
    // Workers may have no heartbeats.
    let interval = if heartbeats.is_zero() { Duration::from_secs(30) } else { 6 * heartbeats };
    let settler = Arc::downgrade(settler);
    supervise::restarting("unroutable", settler, move |settler| check_repeatedly(settler, interval).boxed())
        .spawn()
        .detach();
}

async fn check_repeatedly(settler: &Weak<Settler>, interval: Duration) {
    loop {
        sleep(interval.mul_f64(0.5 + random::chance())).await;
        let Some(settler) = settler.upgrade() else { return };
        check(&settler).await;
    }
}

async fn check(settler: &Settler) {
    // That of the exchange and of the queue.
    let name = settler.names.unroutable();
    // The queue first: it must exist before its exchange routes to it.
    for (target, is_missing) in [
        (Target::queue(name.clone()), settler.missing.is_queue_missing(&name).await),
        (Target::exchange(name.clone(), String::new()), settler.publisher.is_missing(&name).await),
    ] {
        if is_missing && settler.missing.restore_unused(&target).await {
            tracing::warn!(
                name,
                "the exchange or the queue of unroutable messages was missing and is declared again; what no lane took \
                 meanwhile is lost"
            );
        }
    }
}
