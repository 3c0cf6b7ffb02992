//! Dead letters against a fake broker whose queue of dead letters takes none.

use garenne_amqp_kit::Published;
use garenne_protocol::topology::Names;

use super::*;
use crate::DeadLetters;

fn letters(broker: &FakeBroker) -> DeadLetters {
    DeadLetters::new(publisher(broker, PublisherConfig::default()), Names::new("g"))
}

fn letter(target: Target) -> Message {
    Message { target, ..message("k", "letter") }
}

fn key(published: &Published) -> (&str, &str) {
    (&published.exchange, &published.key)
}

#[tokio::test]
async fn a_letter_that_its_queue_refuses_waits_in_another_and_the_problem_names_the_queue() {
    let mut broker = FakeBroker::start(8192).await;
    let letters = letters(&broker);
    let direct = || letter(Target::queue("g.dead".into()));
    let (sent, ()) = tokio::join!(letters.publish(direct()), async {
        let refused = broker.next().await;
        assert_eq!(key(&refused), ("", "g.dead"));
        refused.nack();
        let waits = broker.next().await;
        assert_eq!(key(&waits), ("", "g.dead.waiting"));
        waits.ack();
    });
    sent.unwrap();
    assert_eq!(
        letters.problem().unwrap(),
        "queue \"g.dead\" takes no dead letters: the broker refused the message (queue \"g.dead\" full or \
         unavailable); they wait in \"g.dead.waiting\""
    );
    // The next one does not try again what was refused just now.
    let bridged = letter(Target::exchange("g.dead".into(), "mqtt.message".into()));
    let (sent, ()) = tokio::join!(letters.publish(bridged), async {
        let waits = broker.next().await;
        assert_eq!(key(&waits), ("g.dead.waiting", "mqtt.message"));
        waits.ack();
    });
    sent.unwrap();
}

#[tokio::test]
async fn a_letter_that_neither_queue_takes_is_kept_by_its_caller_until_one_does() {
    let mut broker = FakeBroker::start(8192).await;
    let letters = letters(&broker);
    let direct = || letter(Target::queue("g.dead".into()));
    let (sent, ()) = tokio::join!(letters.publish(direct()), async {
        broker.next().await.nack();
        broker.next().await.nack();
    });
    let refused = sent.unwrap_err().to_string();
    assert_eq!(refused, "the broker refused the message (queue \"g.dead\" full or unavailable)");
    let problem = letters.problem().unwrap();
    let neither = "\"g.dead.waiting\" takes none either: the broker refused the message (queue \"g.dead.waiting\" \
                   full or unavailable)";
    assert!(problem.ends_with(neither), "{problem}");
    let (sent, ()) = tokio::join!(letters.publish(direct()), async {
        let again = broker.next().await;
        assert_eq!(key(&again), ("", "g.dead"));
        again.ack();
    });
    sent.unwrap();
    assert_eq!(letters.problem(), None);
}

#[tokio::test]
async fn a_letter_that_can_be_put_elsewhere_does_not_wait_while_neither_queue_takes_any() {
    let mut broker = FakeBroker::start(8192).await;
    let letters = letters(&broker);
    let direct = || letter(Target::queue("g.dead".into()));
    let (sent, ()) = tokio::join!(letters.publish_at_once(direct()), async {
        broker.next().await.nack();
        broker.next().await.nack();
    });
    sent.unwrap_err();
    // The letter is refused without a publish: this test's broker would not answer one.
    let refused = letters.publish_at_once(direct()).await.unwrap_err().to_string();
    assert_eq!(refused, "the broker refused the message (queue \"g.dead\" full or unavailable)");
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    tokio::time::resume();
    let (sent, refused, ()) =
        tokio::join!(letters.publish_at_once(direct()), letters.publish_at_once(direct()), async {
            let tried = broker.next().await;
            assert_eq!(key(&tried), ("", "g.dead"));
            tried.ack();
        });
    sent.unwrap();
    refused.expect_err("another letter tries the queue");
    assert_eq!(letters.problem(), None);
}

#[tokio::test]
async fn a_missing_queue_is_not_bypassed_at_once_because_a_worker_may_declare_it() {
    let mut broker = FakeBroker::start(8192).await;
    let letters = letters(&broker);
    let (sent, ()) = tokio::join!(letters.publish(letter(Target::queue("g.dead".into()))), async {
        let returned = broker.next().await;
        returned.return_unroutable();
        returned.ack();
    });
    assert!(matches!(sent, Err(PublishError::Unroutable { .. })), "{sent:?}");
    assert!(letters.takes(&Target::exchange("g.dead".into(), String::new())));
    assert!(!letters.takes(&Target::queue("g.retry.fast.1s".into())));
}
