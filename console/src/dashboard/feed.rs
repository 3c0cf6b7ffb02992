//! Live updates as server-sent events. One serialized state is shared by all subscribers.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::monitor::FleetMonitor;

/// Time between two updates, the same as between two heartbeats.
const INTERVAL: Duration = Duration::from_secs(2);

/// The state of the fleet as JSON, renewed while there are subscribers.
pub(super) struct Feed {
    json: watch::Sender<Arc<str>>,
    _task: JoinSet<()>,
}

impl Feed {
    pub(super) fn start(monitor: Arc<FleetMonitor>) -> Self {
        let json = watch::Sender::new(Arc::from(""));
        let mut task = JoinSet::new();
        let sender = json.clone();
        task.spawn(async move {
            let mut tick = interval(INTERVAL);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                if sender.receiver_count() > 0 {
                    sender.send_replace(state_json(&monitor));
                }
            }
        });
        Self { json, _task: task }
    }

    /// The current state at once, then every update.
    pub(super) fn subscribe(
        &self,
        monitor: &FleetMonitor,
    ) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let receiver = self.json.subscribe();
        let first = state_json(monitor);
        let event = |json: &str| Event::default().event("now").retry(Duration::from_secs(1)).data(json);
        let states = stream::unfold((receiver, Some(first)), move |(mut receiver, first)| async move {
            let json = match first {
                Some(json) => {
                    receiver.mark_unchanged();
                    json
                }
                None => {
                    receiver.changed().await.ok()?;
                    Arc::clone(&receiver.borrow_and_update())
                }
            };
            Some((Ok(event(&json)), (receiver, None)))
        });
        Sse::new(states).keep_alive(KeepAlive::default())
    }
}

fn state_json(monitor: &FleetMonitor) -> Arc<str> {
    serde_json::to_string(&monitor.now()).expect("text and numbers").into()
}
