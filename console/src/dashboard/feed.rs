//! Live updates as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, StreamExt};
use tokio_stream::wrappers::IntervalStream;

use super::app_state::App;
use crate::ticks::ticks;

/// Time between two updates, the same as between two heartbeats.
const INTERVAL: Duration = Duration::from_secs(2);

/// The current state of the fleet at once, then every update.
pub(super) async fn events(State(app): App) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let states = IntervalStream::new(ticks(INTERVAL)).map(move |_| {
        let event = Event::default().event("now").retry(Duration::from_secs(1));
        Ok(event.json_data(app.monitor.now()).expect("text and numbers"))
    });
    Sse::new(states).keep_alive(KeepAlive::default())
}
