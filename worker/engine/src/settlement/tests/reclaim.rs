//! Messages whose queue was deleted while a worker held them.

use garenne_common::shutdown::Tally;
use garenne_protocol::amqp::{BasicProperties, ShortString};
use tokio::sync::watch;

use super::{copies::env, *};
use crate::consumer::{Cancellation, Intake, LaneIntake, LaneQuiet, Orphan};

fn orphan(body: &'static [u8], cancellation: Cancellation) -> Orphan {
    Orphan {
        exchange: ShortString::default(),
        routing_key: "garenne.tasks.fast".into(),
        properties: BasicProperties::default(),
        identity: None,
        received_at: SystemTime::UNIX_EPOCH,
        body: body.into(),
        cancellation: Arc::new(cancellation),
    }
}

#[tokio::test]
async fn only_messages_that_the_broker_does_not_deliver_again_are_published_again() {
    let mut env = env().await;
    let (worker, lane) = (watch::Sender::new(Intake::Open), watch::Sender::new(LaneQuiet::default()));
    let until = LaneIntake::new(worker.subscribe(), lane.subscribe());
    let tally = Arc::<Tally>::default();
    tally.settled_many(Settlement::LostSettlement, 2);
    for (body, delivers_again) in [(b"redelivered", true), (b"of no queue", false)] {
        let orphan = orphan(body, Cancellation::decided(delivers_again));
        let settler = &env.test.settler;
        settler.reclaim(&env.test.lane, orphan, "garenne.tasks.fast", until.clone(), &tally);
    }
    let again = env.copy().await;
    assert_eq!((again.key.as_str(), again.body.as_slice()), ("garenne.tasks.fast", &b"of no queue"[..]));
    again.ack();
    env.test.settler.idle().await;
    assert!(!env.broker.has_more(), "another message was published");
    let counts = [Settlement::LostSettlement, Settlement::Retried].map(|it| tally.count(it));
    assert_eq!(counts, [1, 1]);
}
