//! Live updates as server-sent events. One serialized state is shared by all subscribers.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{FutureExt, Stream, stream};
use garenne_common::supervise::{self, TaskHandle};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use crate::monitor::FleetMonitor;

/// Time between two updates, the same as between two heartbeats.
const INTERVAL: Duration = Duration::from_secs(2);

/// The state of the fleet as JSON, renewed while there are subscribers.
pub(super) struct Feed {
    monitor: Arc<FleetMonitor>,
    json: watch::Sender<Arc<str>>,
    _renewal: TaskHandle<()>,
}

impl Feed {
    pub(super) fn start(monitor: Arc<FleetMonitor>) -> Self {
        let json = watch::Sender::new(Arc::from(""));
        let state = (json.clone(), Arc::clone(&monitor));
        let renewal =
            supervise::restarting("dashboard feed", state, |(json, monitor)| renew(json, monitor).boxed());
        Self { monitor, json, _renewal: renewal.spawn() }
    }

    /// The current state at once, then every update.
    pub(super) fn subscribe(&self) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let receiver = self.json.subscribe();
        self.json.send_replace(state_json(&self.monitor));
        let states = stream::unfold(receiver, |mut receiver| async {
            receiver.changed().await.ok()?;
            let json = Arc::clone(&receiver.borrow_and_update());
            let event = Event::default().event("now").retry(Duration::from_secs(1)).data(json);
            Some((Ok(event), receiver))
        });
        Sse::new(states).keep_alive(KeepAlive::default())
    }
}

async fn renew(json: &watch::Sender<Arc<str>>, monitor: &FleetMonitor) {
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if json.receiver_count() > 0 {
            json.send_replace(state_json(monitor));
        }
    }
}

fn state_json(monitor: &FleetMonitor) -> Arc<str> {
    serde_json::to_string(&monitor.now()).expect("text and numbers").into()
}
