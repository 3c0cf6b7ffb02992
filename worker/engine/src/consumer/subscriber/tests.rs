use std::sync::Mutex;

use futures_util::{FutureExt, stream::BoxStream};
use garenne_amqp::declare::TopologyError;
use garenne_protocol::{
    amqp::{BasicProperties, FieldTable},
    settlement::Settlement,
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
    /// Deletes the queue after the message, and the stream after the records, instead of ending the channel.
    deletes: bool,
    /// When each channel was opened.
    opened: Arc<Mutex<Vec<Instant>>>,
    /// Deliveries that are dropped while the broker is asked for its version.
    held: Arc<Mutex<Vec<Delivery>>>,
}

/// Its channel. `deliveries` is set while there is a consumer.
#[derive(Clone, Default)]
pub(in crate::consumer) struct EndingChannel {
    delivers: bool,
    deletes: bool,
    deliveries: Arc<Mutex<Option<mpsc::UnboundedSender<Delivered>>>>,
}

impl EndingBroker {
    pub(in crate::consumer) fn that_deletes() -> Self {
        Self { deletes: true, ..Self::default() }
    }
}

fn ended() -> ChannelError {
    ChannelError { reply: None, text: "the channel ended".into() }
}

impl ConsumeBroker for EndingBroker {
    type Channel = EndingChannel;

    async fn version(&self) -> Result<BrokerVersion, BrokerError> {
        self.held.lock().unwrap().clear();
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
        let Self { delivers, deletes, .. } = *self;
        Ok(EndingChannel { delivers, deletes, ..EndingChannel::default() })
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
        *self.deliveries.lock().unwrap() = Some(sender).filter(|_| !self.deletes);
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
        let records = [Ok(record(first)), Ok(record(first + 1))];
        let end = Some(Err(ended())).filter(|_| !self.deletes);
        Ok(futures_util::stream::iter(records.into_iter().chain(end)).boxed())
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

/// Subscribes to a queue for some seconds.
async fn subscribe(
    broker: &EndingBroker,
    accept: impl AsyncFn(Vec<Delivery>) -> Result<(), String>,
    on_orphan: OnOrphan,
) {
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
        accept,
        ack_writers: TaskTracker::new(),
        on_orphan,
        cancellation: Weak::new(),
        must_bind: false,
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), subscriber.run()).await;
    drop(intake);
}

/// The pauses between the channels of a subscriber, whose channels settle a message or do not.
async fn pauses(delivers: bool) -> Vec<Duration> {
    let broker = EndingBroker { delivers, ..EndingBroker::default() };
    let accept = async |deliveries: Vec<Delivery>| {
        deliveries.into_iter().for_each(|delivery| delivery.settle(Settlement::Acked));
        Ok(())
    };
    subscribe(&broker, accept, Arc::new(|_| {})).await;
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

/// Asserts that the message of each channel is kept and counts as lost with its queue, but for the last channel. Returns the
/// number of channels.
async fn channels_whose_messages_are_kept(
    broker: &EndingBroker,
    accept: impl AsyncFn(Vec<Delivery>) -> Result<(), String>,
) -> usize {
    let cancellations: Arc<Mutex<Vec<_>>> = Arc::default();
    let orphans = Arc::clone(&cancellations);
    subscribe(broker, accept, Arc::new(move |orphan| orphans.lock().unwrap().push(orphan.cancellation)))
        .await;
    let channels = broker.opened.lock().unwrap().len();
    let cancellations = cancellations.lock().unwrap();
    let kept = cancellations.len();
    assert!(kept >= channels - 1, "{kept} of {channels}");
    for cancellation in &cancellations[..channels - 1] {
        assert_eq!(cancellation.delivers_again(None).now_or_never(), Some(false));
    }
    channels
}

/// The broker has dropped it with the queue, and would drop a requeue as well.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_handed_back_as_soon_as_its_queue_is_deleted_is_kept() {
    let broker = EndingBroker { delivers: true, ..EndingBroker::that_deletes() };
    let held = Arc::clone(&broker.held);
    let accept = async move |deliveries: Vec<Delivery>| {
        held.lock().unwrap().extend(deliveries);
        Ok(())
    };
    assert!(channels_whose_messages_are_kept(&broker, accept).await > 5);
}

/// Its admission takes as long as a look at the fleet. The connection may be lost meanwhile, and another worker may have
/// declared the queue again.
#[tokio::test(start_paused = true)]
async fn a_message_whose_queue_is_deleted_during_its_admission_is_kept() {
    let broker = EndingBroker { delivers: true, ..EndingBroker::that_deletes() };
    let accept = async |deliveries: Vec<Delivery>| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(deliveries);
        Ok(())
    };
    assert!(channels_whose_messages_are_kept(&broker, accept).await > 1);
}
