//! Messages whose queue was deleted while a worker held them.

use garenne_common::shutdown::Tally;
use garenne_protocol::{
    amqp::{BasicProperties, FieldTable, ShortString},
    task::header,
};
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
async fn a_publishers_delay_ends_when_it_would_have_ended() {
    let mut env = env().await;
    let (worker, lane) = (watch::Sender::new(Intake::Open), watch::Sender::new(LaneQuiet::default()));
    let until = LaneIntake::new(worker.subscribe(), lane.subscribe());
    let mut headers = FieldTable::default();
    headers.insert(header::DELAY_MS.into(), 2500.into());
    let received_at = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    let orphan = Orphan {
        exchange: "garenne.tasks".into(),
        properties: BasicProperties::default().with_headers(headers),
        received_at,
        ..orphan(b"{}", Cancellation::decided(false))
    };
    env.test.settler.reclaim(&env.test.lane, orphan, "garenne.tasks.fast", until, &Arc::default());
    let again = env.copy().await;
    assert_eq!((again.number(header::NOT_BEFORE), again.number(header::DELAY_MS)), (Some(9_500), None));
    again.ack();
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
