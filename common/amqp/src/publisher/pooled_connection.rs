//! Creates and checks the publisher's connections, which its pool holds.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use futures_util::{FutureExt, StreamExt};
use garenne_common::{
    connection::{ConnectionObserver, Role},
    supervise,
};
use lapin::{Channel, Connection, Event, options::ConfirmSelectOptions};

use super::{
    confirm_tracker::ConfirmTracker,
    requests::{ReplyConsumer, Requests},
};
use crate::{connect::Broker, error::BrokerError};

/// The pool's manager.
pub(super) struct ConnectionOpener {
    pub(super) broker: Broker,
    pub(super) observer: Option<Arc<dyn ConnectionObserver>>,
    pub(super) blocked: Arc<AtomicBool>,
    /// The number of the newest connection.
    pub(super) newest: Arc<AtomicUsize>,
    /// Set if the channel consumes replies.
    pub(super) requests: Option<Arc<Requests>>,
}

impl ConnectionOpener {
    /// Spawns a task that updates the observer and the `blocked` flag until the connection ends.
    fn observe(&self, connection: &Connection) {
        let observer = self.observer.clone();
        let flag = Arc::clone(&self.blocked);
        // A connection may be replaced before the end of the one before it is noticed, which then says nothing any more.
        let (newest, own) = (Arc::clone(&self.newest), self.newest.fetch_add(1, Ordering::Relaxed) + 1);
        let events = Box::pin(connection.events_listener());
        let status = connection.status().clone();
        let set = move |up: bool, blocked: bool| {
            if newest.load(Ordering::Relaxed) != own {
                return;
            }
            flag.store(blocked, Ordering::Relaxed);
            if let Some(observer) = &observer {
                observer.up_changed(Role::Publish, up);
                observer.blocked_changed(blocked);
            }
        };
        set(true, false);
        let observing = supervise::restarting("connection events", (events, status, set), |state| {
            let (events, status, set) = state;
            async move {
                while let Some(event) = events.next().await {
                    match event {
                        Event::ConnectionBlocked(reason) => {
                            tracing::warn!(reason, "the broker blocks publishers");
                            set(true, true);
                        }
                        Event::ConnectionUnblocked => set(true, false),
                        Event::Error(_) if !status.connected() => break,
                        _ => {}
                    }
                }
                set(false, false);
            }
            .boxed()
        });
        observing.spawn().detach();
    }
}

/// A connection with its confirm channel. Dropping the connection would close the channel.
pub(super) struct PooledConnection {
    pub(super) connection: Arc<Connection>,
    pub(super) channel: Arc<Channel>,
    pub(super) confirm_tracker: ConfirmTracker,
    pub(super) replies: Option<ReplyConsumer>,
}

impl Manager for ConnectionOpener {
    type Type = PooledConnection;
    type Error = BrokerError;

    async fn create(&self) -> Result<PooledConnection, BrokerError> {
        let connection = self.broker.connect(Role::Publish).await?;
        let opening = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let replies = match &self.requests {
                Some(requests) => Some(requests.consume(&channel).await?),
                None => None,
            };
            Ok::<_, lapin::Error>((Arc::new(channel), replies))
        };
        let (channel, replies) = opening.await.map_err(|error| self.broker.explain(&error))?;
        self.observe(&connection);
        let confirm_tracker = ConfirmTracker::start(Arc::clone(&channel), header_limit(&connection));
        Ok(PooledConnection { connection: Arc::new(connection), channel, confirm_tracker, replies })
    }

    async fn recycle(&self, pooled: &mut PooledConnection, _: &Metrics) -> RecycleResult<BrokerError> {
        let problem = if !pooled.connection.status().connected() || !pooled.channel.status().connected() {
            "the connection ended"
        } else if !pooled.confirm_tracker.is_running() {
            tracing::error!("confirm tracker ended, replacing its connection");
            "the confirm tracker ended"
        } else if pooled.replies.as_ref().is_some_and(|replies| !replies.is_running()) {
            "the consumer of replies ended"
        } else {
            return Ok(());
        };
        if let Some(observer) = &self.observer {
            observer.reconnected(Role::Publish);
        }
        Err(RecycleError::message(problem))
    }
}

/// Bytes left free in each header frame for the headers that the broker adds to a dead-lettered message, such as
/// `x-death`. The broker delivers a header frame over frame_max, at which clients end their connection.
const BROKER_HEADERS: usize = 2048;

/// Largest header frame to publish, in bytes: the negotiated frame_max less [`BROKER_HEADERS`].
pub(super) fn header_limit(connection: &Connection) -> usize {
    let frame_max = usize::try_from(connection.configuration().frame_max()).unwrap_or(usize::MAX);
    frame_max.saturating_sub(BROKER_HEADERS)
}
