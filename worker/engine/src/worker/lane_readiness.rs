//! Whether the handlers of a lane can run tasks.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::select_all};
use garenne_common::{config::Lanes, supervise};
use tokio::sync::watch;

use crate::{
    consumer::{Intake, LaneQuiet},
    pipeline::LanePool,
    registry::Registry,
};

/// Kinds or patterns, and whether their handlers are ready.
pub(super) type Readiness = Vec<(String, watch::Receiver<Result<(), String>>)>;

/// The readiness of the kinds that a lane takes. Empty if one of them is always ready.
///
/// A catch-all lane may also hold kinds that are published to it directly. These do not count.
pub(super) fn readiness_of(registry: &Registry, lanes: &Lanes, lane: &str) -> Readiness {
    let takes = |kind: &str| lanes.giving(kind).any(|(name, _)| name == lane);
    let given = registry.entries().filter(|(kind, _)| takes(kind));
    let readiness = given.map(|(kind, entry)| Some((kind.to_owned(), entry.options.ready.clone()?)));
    readiness.collect::<Option<_>>().unwrap_or_default()
}

/// The state of the task that follows the readiness of a lane's handlers.
struct LaneReadiness {
    name: Arc<str>,
    pool: LanePool,
    readiness: Readiness,
    /// The intake of the worker.
    worker: watch::Receiver<Intake>,
    quiet: watch::Sender<LaneQuiet>,
}

/// Keeps the lane quiet while none of its handlers is ready.
pub(super) fn follow_readiness(
    name: &Arc<str>,
    pool: &LanePool,
    readiness: Readiness,
    worker: watch::Receiver<Intake>,
    quiet: watch::Sender<LaneQuiet>,
) {
    if readiness.is_empty() {
        return;
    }
    let mut lane = LaneReadiness { name: Arc::clone(name), pool: pool.clone(), readiness, worker, quiet };
    lane.update();
    supervise::restarting("lane-readiness", lane, |lane| lane.run().boxed()).spawn().detach();
}

impl LaneReadiness {
    /// Follows the readiness until the worker's intake is closed.
    async fn run(&mut self) {
        loop {
            self.update();
            let changes = self.readiness.iter_mut().map(|(_, ready)| ready.changed().boxed());
            tokio::select! {
                biased;
                _ = self.worker.wait_for(|intake| *intake == Intake::Closed) => return,
                (changed, ..) = select_all(changes) => if changed.is_err() {
                    // The handler has ended, and with it the worker.
                    return;
                },
            }
        }
    }

    /// Updates the lane. Tasks that wait in the pool of a lane that is not ready go back to their queue.
    fn update(&mut self) {
        let is_unready = !self.readiness.iter_mut().any(|(_, ready)| ready.borrow_and_update().is_ok());
        let changed = self
            .quiet
            .send_if_modified(|quiet| std::mem::replace(&mut quiet.is_unready, is_unready) != is_unready);
        if changed && is_unready {
            let kinds = self.readiness.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>().join(", ");
            tracing::info!(lane = %self.name, kinds, "the lane is not consumed until a handler is ready");
        } else if changed {
            tracing::info!(lane = %self.name, "a handler of the lane is ready");
        }
        if is_unready {
            self.pool.hand_back_waiting(Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use garenne_common::{config::Lane as LaneConfig, telemetry::Metrics};
    use tokio::runtime::Handle;

    use super::*;
    use crate::worker::lane::start_pool;

    #[tokio::test]
    async fn a_lane_is_quiet_only_while_none_of_its_handlers_is_ready() {
        let metrics = Metrics::new("test").lane("fast");
        let pool = start_pool("fast", &LaneConfig::default(), Duration::ZERO, &metrics, Handle::current());
        let handlers = ["mail", "sms"].map(|kind| (kind, watch::Sender::new(Err("starts".to_owned()))));
        let readiness =
            handlers.iter().map(|(kind, ready)| ((*kind).to_owned(), ready.subscribe())).collect();
        let worker = watch::Sender::new(Intake::Open).subscribe();
        let quiet = watch::Sender::new(LaneQuiet::default());
        let mut lane = LaneReadiness {
            name: "fast".into(),
            pool: pool.unwrap(),
            readiness,
            worker,
            quiet: quiet.clone(),
        };
        let mut is_quiet = |ready: [bool; 2]| {
            for ((_, handler), is_ready) in handlers.iter().zip(ready) {
                handler.send_modify(|it| *it = is_ready.then_some(()).ok_or_else(|| "restarts".to_owned()));
            }
            lane.update();
            quiet.borrow().is_unready
        };
        let states = [[false, false], [true, false], [true, true], [false, true], [false, false]];
        assert_eq!(states.map(&mut is_quiet), [true, false, false, false, true]);
    }
}
