//! Live updates as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, StreamExt, stream};
use garenne_operator::ticks::ticks;
use tokio_stream::wrappers::IntervalStream;

use super::app_state::App;

/// Time between two updates, the same as between two heartbeats.
const INTERVAL: Duration = Duration::from_secs(2);

/// The current state of the fleet and the jobs at once, then every update.
pub(super) async fn events(State(app): App) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut sent = None;
    let updates = IntervalStream::new(ticks(INTERVAL)).flat_map(move |_| {
        let event = Event::default().event("now").retry(Duration::from_secs(1));
        let now = event.json_data(app.monitor.now()).expect("text and numbers");
        // The jobs only if they changed.
        let jobs = Some(app.jobs.view());
        let changed = jobs != sent;
        sent = jobs;
        let jobs =
            changed.then(|| Event::default().event("jobs").json_data(&sent).expect("text and numbers"));
        stream::iter([Some(now), jobs].into_iter().flatten().map(Ok))
    });
    Sse::new(updates).keep_alive(KeepAlive::default())
}
