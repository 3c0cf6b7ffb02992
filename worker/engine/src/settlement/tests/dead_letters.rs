//! Dead letters while their queues take none.

use garenne_protocol::task::header;

use super::{
    copies::{TestEnv, env},
    *,
};

#[tokio::test]
async fn while_neither_queue_takes_dead_letters_one_is_tried_and_the_others_are_put_off() {
    let mut env = env().await;
    let dead = |env: &TestEnv, tag| {
        let task = env.test.task_of(Delivery::mock(&env.test.generation, tag, b"{}"));
        env.test.begin(|settler| async move {
            settler.dead_letter(task, None, DeadReason::InvalidPayload, "bad".to_owned()).await;
        });
    };
    dead(&env, 1);
    for queue in ["garenne.dead", "garenne.dead.waiting"] {
        let refused = env.copy().await;
        assert_eq!(refused.key, queue);
        refused.nack();
    }
    // The first one takes the place of the one that is held.
    let tried = env.copy().await;
    assert_eq!(tried.key, "garenne.dead");
    dead(&env, 2);
    let put_off = env.copy().await;
    assert_eq!(put_off.key, "garenne.retry.fast.15s");
    assert_eq!((put_off.text(header::REASON), put_off.text(header::ERROR)), (None, None));
    put_off.ack();
    tried.ack();
    env.test.settler.idle().await;
    let mut settled = env.test.generation.requested_settlements();
    settled.sort_by_key(|(tag, _)| *tag);
    assert_eq!(settled, [(1, Settlement::Dead), (2, Settlement::Retried)]);
    assert_eq!(env.test.settler.letters.problem(), None);
}
