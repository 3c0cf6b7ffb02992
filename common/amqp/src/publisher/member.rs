//! The publisher's connections, made and checked.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use futures_util::StreamExt;
use garenne_common::telemetry::metrics::{ConnectionMetrics, Role};
use lapin::{Channel, Connection, Event, options::ConfirmSelectOptions};

use super::confirm_tracker::ConfirmTracker;
use crate::{connect::Broker, error::BrokerError};

/// Makes and checks members.
pub(super) struct Members {
    pub(super) broker: Broker,
    pub(super) metrics: Option<ConnectionMetrics>,
    pub(super) blocked: Arc<AtomicBool>,
}

impl Members {
    /// Keeps the gauges of a connection true until it ends.
    fn observe(&self, connection: &Connection) {
        let gauges = self.metrics.as_ref().map(|metrics| {
            // Shown from the first connection on, at zero.
            metrics.reconnects(Role::Publish);
            (metrics.up(Role::Publish), metrics.blocked.clone())
        });
        let flag = Arc::clone(&self.blocked);
        let mut events = Box::pin(connection.events_listener());
        let status = connection.status().clone();
        let show = move |up: bool, blocked: bool| {
            flag.store(blocked, Ordering::Relaxed);
            if let Some((is_up, is_blocked)) = &gauges {
                is_up.set(up.into());
                is_blocked.set(blocked.into());
            }
        };
        show(true, false);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                match event {
                    Event::ConnectionBlocked(reason) => {
                        tracing::warn!(reason, "the broker blocks publishers");
                        show(true, true);
                    }
                    Event::ConnectionUnblocked => show(true, false),
                    Event::Error(_) if !status.connected() => break,
                    _ => {}
                }
            }
            show(false, false);
        });
    }
}

/// A connection with its confirm channel. The connection is kept for as long as the channel is used.
pub(super) struct Member {
    pub(super) connection: Arc<Connection>,
    pub(super) channel: Arc<Channel>,
    pub(super) confirm_tracker: ConfirmTracker,
}

impl Manager for Members {
    type Type = Member;
    type Error = BrokerError;

    async fn create(&self) -> Result<Member, BrokerError> {
        let connection = self.broker.connect(Role::Publish).await?;
        let opening = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok::<_, lapin::Error>(Arc::new(channel))
        };
        let channel = opening.await.map_err(|error| BrokerError::Unavailable {
            address: self.broker.address(),
            detail: error.to_string(),
        })?;
        self.observe(&connection);
        let confirm_tracker = ConfirmTracker::start(Arc::clone(&channel), header_limit(&connection));
        Ok(Member { connection: Arc::new(connection), channel, confirm_tracker })
    }

    async fn recycle(&self, member: &mut Member, _: &Metrics) -> RecycleResult<BrokerError> {
        let problem = if !member.connection.status().connected() || !member.channel.status().connected() {
            "the connection ended"
        } else if !member.confirm_tracker.is_running() {
            tracing::error!("the task that tracks confirms ended: its connection is replaced");
            "its task ended"
        } else {
            return Ok(());
        };
        if let Some(metrics) = &self.metrics {
            metrics.reconnects(Role::Publish).inc();
        }
        Err(RecycleError::message(problem))
    }
}

/// Left free in each header frame for what the broker adds when it dead-publishes a message (`x-death` and its like): it
/// sends the message on in a frame over the limit, and the consumer's connection ends.
const BROKER_HEADERS: usize = 2048;

/// The largest header frame that may be sent: the largest frame that both sides agreed on, less what the broker adds.
pub(super) fn header_limit(connection: &Connection) -> usize {
    let frame_max = usize::try_from(connection.configuration().frame_max()).unwrap_or(usize::MAX);
    frame_max.saturating_sub(BROKER_HEADERS)
}
