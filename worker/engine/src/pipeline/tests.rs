use garenne_protocol::{
    settlement::Settlement,
    task::{TaskId, header},
};

use super::{quarantine::tests::env, *};

/// An admission that panics over each delivery.
fn panicking(_: Delivery) -> Option<Ready> {
    panic!("out of range")
}

#[tokio::test]
async fn a_message_whose_admission_always_panics_becomes_a_dead_letter_with_its_body() {
    let mut env = env().await;
    let body = b"it panics";
    for panics in 0..=MAX_PANICS {
        let mut delivery = Delivery::mock(&env.test.generation, 1, body);
        delivery.head_mut().redelivered = panics > 0;
        let panic = env.pipeline.admit_caught(delivery, panicking).err();
        assert_eq!(panic.as_deref(), Some("out of range"));
    }
    let requeued = vec![(1, Settlement::Requeued); MAX_PANICS as usize + 1];
    assert_eq!(env.test.generation.requested_settlements(), requeued);

    let mut delivery = Delivery::mock(&env.test.generation, 2, body);
    delivery.head_mut().redelivered = true;
    assert!(matches!(env.pipeline.admit_caught(delivery, panicking), Ok(None)));
    let copy = env.broker.next().await;
    assert_eq!(
        (copy.key.as_str(), copy.text(header::REASON).unwrap().as_str()),
        ("garenne.dead", "attempts-exhausted")
    );
    assert!(copy.text(header::ERROR).unwrap().ends_with("out of range"));
    assert_eq!(copy.body, body);
    copy.ack();
    env.test.settler.idle().await;
    assert_eq!(env.test.generation.requested_settlements().last(), Some(&(2, Settlement::Dead)));
}

#[tokio::test]
async fn an_admission_between_two_panics_resets_their_count() {
    let env = env().await;
    let ready = || {
        let task = env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}"));
        env.pipeline.prepare(task, Arc::clone(&env.test.entry), None, None)
    };
    for round in 0..3 * MAX_PANICS {
        let mut delivery = Delivery::mock(&env.test.generation, 1, b"{}");
        delivery.head_mut().redelivered = true;
        let admit = |_| if round % MAX_PANICS == 0 { Some(ready()) } else { panic!("out of range") };
        assert_eq!(env.pipeline.admit_caught(delivery, admit).is_ok(), round % MAX_PANICS == 0);
    }
    assert_eq!(env.broker.connections(), 0, "no dead letter");
}

#[tokio::test]
async fn a_panic_in_the_background_counts_as_one_of_the_admission() {
    let env = env().await;
    let mut delivery = Delivery::mock(&env.test.generation, 1, b"{}");
    delivery.head_mut().redelivered = true;
    let fingerprint = delivery.fingerprint().unwrap();
    for _ in 0..MAX_PANICS {
        assert_eq!(env.pipeline.admission_panics.take_if_too_many(fingerprint), None);
        env.pipeline.admit_later(Some(fingerprint), async { panic!("out of range") });
        env.test.settler.idle().await;
    }
    let panic = env.pipeline.admission_panics.take_if_too_many(fingerprint);
    assert_eq!(panic.as_deref(), Some("panicked: out of range"));
}

#[tokio::test]
async fn a_redelivered_batch_is_admitted_without_the_records_that_succeeded_here() {
    let env = env().await;
    env.test.settler.redeliveries.mark_succeeded(&TaskId::parse("done").unwrap());
    let admitted = |ids: &[&str]| {
        let mut task = env.test.batch_of(ids);
        task.delivery.head_mut().redelivered = true;
        let batch = env.pipeline.unless_done_or_running_here(task)?.batch.unwrap();
        Some(batch.records.iter().map(|record| record.envelope.id.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(admitted(&["done"]), None);
    assert_eq!(env.test.generation.requested_settlements(), [(1, Settlement::Acked)]);
    assert_eq!(admitted(&["a", "done", "b"]), Some(vec!["a".to_owned(), "b".to_owned()]));
}
