use std::sync::Mutex;

use futures_util::stream::BoxStream;
use garenne_amqp::declare::TopologyError;
use garenne_common::shutdown::Settlement;
use garenne_protocol::{
    amqp::{BasicProperties, FieldTable},
    topology::{BrokerVersion, Topology},
};

use super::*;
use crate::consumer::{
    LaneQuiet,
    broker::{ChannelError, Frame, RawDelivery, RestoreError, SettleChannel},
};

type Delivered = Result<RawDelivery, ChannelError>;

/// A broker whose channels end at once, or after the settlement of one message, or after two records of a stream.
#[derive(Clone, Default)]
pub(in crate::consumer) struct EndingBroker {
    delivers: bool,
    /// When each channel was opened.
    opened: Arc<Mutex<Vec<Instant>>>,
}

/// Its channel. `deliveries` is set while there is a consumer.
#[derive(Clone, Default)]
pub(in crate::consumer) struct EndingChannel {
    delivers: bool,
    deliveries: Arc<Mutex<Option<mpsc::UnboundedSender<Delivered>>>>,
}

fn ended() -> ChannelError {
    ChannelError { reply: None, text: "the channel ended".into() }
}

impl ConsumeBroker for EndingBroker {
    type Channel = EndingChannel;

    async fn version(&self) -> Result<BrokerVersion, BrokerError> {
        Ok("4.0.9".parse().unwrap())
    }

    async fn ensure(&self, _: Topology) -> Result<(), TopologyError> {
        Ok(())
    }

    async fn restore_topology(&self) -> Result<(), RestoreError> {
        Ok(())
    }

    async fn look_up(&self, _: &str) -> Option<QueueState> {
        None
    }

    async fn open(&self, _: u16) -> Result<Self::Channel, BrokerError> {
        self.opened.lock().unwrap().push(Instant::now());
        Ok(EndingChannel { delivers: self.delivers, ..EndingChannel::default() })
    }

    fn denied(&self, _: &str) -> BrokerError {
        unreachable!("nothing is denied")
    }

    fn for_foreign_messages(&self) -> Self {
        self.clone()
    }

    async fn close(&self) {}
}

impl ConsumeChannel for EndingChannel {
    type Deliveries = BoxStream<'static, Delivered>;

    async fn consume(&self, _: &str, _: &str) -> Result<Self::Deliveries, ChannelError> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let first = if self.delivers { Ok(message()) } else { Err(ended()) };
        sender.send(first).unwrap();
        *self.deliveries.lock().unwrap() = Some(sender);
        Ok(futures_util::stream::poll_fn(move |context| receiver.poll_recv(context)).boxed())
    }

    async fn consume_control_queue(
        &self,
        _: &str,
        _: &str,
        _: &[&str],
    ) -> Result<Self::Deliveries, ChannelError> {
        Err(ended())
    }

    async fn bind_control_queue(&self, _: &str, _: &str, _: &[&str]) -> Result<(), ChannelError> {
        Err(ended())
    }

    /// The body of a record is its offset.
    async fn consume_stream(&self, _: &str, from: Option<i64>) -> Result<Self::Deliveries, ChannelError> {
        let record = |offset: i64| {
            let mut headers = FieldTable::default();
            headers.insert("x-stream-offset".into(), offset.into());
            let properties = BasicProperties::default().with_headers(headers);
            RawDelivery { properties, body: offset.to_string().into(), ..message() }
        };
        let first = from.unwrap_or_default();
        let records = [Ok(record(first)), Ok(record(first + 1)), Err(ended())];
        Ok(futures_util::stream::iter(records).boxed())
    }

    async fn cancel(&self, _: &str) -> Result<(), ChannelError> {
        Ok(())
    }

    fn is_open(&self) -> bool {
        true
    }

    async fn close(&self) -> Result<(), ChannelError> {
        Ok(())
    }
}

impl SettleChannel for EndingChannel {
    async fn send(&self, _: &Frame) -> Result<(), ChannelError> {
        let consumer = self.deliveries.lock().unwrap().take();
        consumer.into_iter().for_each(|it| it.send(Err(ended())).unwrap());
        Ok(())
    }

    async fn flush_stash(&self, _: &str) -> Result<(), ChannelError> {
        Ok(())
    }
}

fn message() -> RawDelivery {
    RawDelivery {
        tag: 1,
        exchange: "".into(),
        routing_key: "k".into(),
        redelivered: false,
        properties: Default::default(),
        body: Vec::new(),
    }
}

/// The pauses between the channels of a subscriber, whose channels settle a message or do not.
async fn pauses(delivers: bool) -> Vec<Duration> {
    let broker = EndingBroker { delivers, ..EndingBroker::default() };
    let metrics = Metrics::new("test");
    let (intake, wanted) = watch::channel(Intake::Open);
    let quiet = watch::Sender::new(LaneQuiet::default());
    let mut subscriber = Subscriber {
        broker: broker.clone(),
        is_foreign: false,
        subscription: Subscription::for_queues(vec!["queue".into()], 4, "tag").remove(0),
        counters: SettlementCounters { tally: Arc::default(), lane: metrics.lane("test") },
        metrics,
        intake: LaneIntake::new(wanted, quiet.subscribe()),
        problem: watch::Sender::new(None),
        denied: None,
        accept: async |deliveries: Vec<Delivery>| {
            deliveries.into_iter().for_each(|delivery| delivery.settle(Settlement::Acked));
            Ok(())
        },
        ack_writers: TaskTracker::new(),
        on_orphan: Arc::new(|_| {}),
        cancellation: Weak::new(),
        must_bind: false,
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), subscriber.run()).await;
    drop(intake);
    let opened = broker.opened.lock().unwrap();
    opened.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn only_a_settlement_resets_the_pause_before_the_next_channel() {
    // The first pause has at most 100 ms, and a settlement waits for a tick.
    let short = Duration::from_millis(110);
    let after_settlements = pauses(true).await;
    assert!(after_settlements.len() > 50, "{after_settlements:?}");
    assert!(after_settlements.iter().all(|pause| *pause <= short), "{after_settlements:?}");
    let without = pauses(false).await;
    assert!(without.len() > 5 && without[4..].iter().all(|pause| *pause > short), "{without:?}");
}
