//! Live updates: one text for everybody who watches, made only while somebody does.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, stream};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::routes::Desk;
use crate::scope::Scope;

/// Between two updates; workers say no more in less time.
const EVERY: Duration = Duration::from_secs(2);

/// What is now, as JSON, again and again.
pub(super) struct Feed {
    text: watch::Sender<Arc<str>>,
    _making: JoinSet<()>,
}

impl Feed {
    pub(super) fn start(scope: Arc<Scope>) -> Self {
        let text = watch::Sender::new(Arc::from(""));
        let mut making = JoinSet::new();
        let sender = text.clone();
        making.spawn(async move {
            let mut tick = interval(EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                if sender.receiver_count() > 0 {
                    sender.send_replace(text_of(&scope));
                }
            }
        });
        Self { text, _making: making }
    }
}

fn text_of(scope: &Scope) -> Arc<str> {
    serde_json::to_string(&scope.now()).expect("text and numbers").into()
}

/// `GET /api/events`: the whole state at once, then at every change.
pub(super) async fn events(
    State(desk): State<Arc<Desk>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let receiver = desk.feed.text.subscribe();
    let first = text_of(&desk.scope);
    let event = |text: &str| Event::default().event("now").retry(Duration::from_secs(1)).data(text);
    let states = stream::unfold((receiver, Some(first)), move |(mut receiver, first)| async move {
        let text = match first {
            Some(text) => {
                receiver.mark_unchanged();
                text
            }
            None => {
                receiver.changed().await.ok()?;
                Arc::clone(&receiver.borrow_and_update())
            }
        };
        Some((Ok(event(&text)), (receiver, None)))
    });
    Sse::new(states).keep_alive(KeepAlive::default())
}
