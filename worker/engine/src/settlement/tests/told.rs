//! What sinks are told of tasks without a result.

use super::{
    copies::{FRAME_MAX, env_with},
    *,
};

/// What a sink was told of tasks without a result.
#[derive(Default)]
struct Told(Mutex<Vec<(String, bool)>>);

impl Sink for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        std::future::ready(Ok(vec![SinkAnswer::Stored; batch.len()])).boxed()
    }

    fn ended_without_result(&self, kind: &str, task_id: &str, is_dead: bool) {
        assert_eq!(kind, "any.thing");
        self.0.lock().unwrap().push((task_id.to_owned(), is_dead));
    }
}

#[tokio::test]
async fn a_sink_is_told_of_a_copy_once_it_is_confirmed() {
    for (outcome, is_dead) in [
        (Outcome::Retry { error: "io".into(), after: None }, false),
        (Outcome::Defer { wait: Duration::from_secs(1) }, false),
        (Outcome::Dead { reason: DeadReason::Rejected, error: "no".into() }, true),
    ] {
        let told = Arc::new(Told::default());
        let mut env = env_with(vec![Arc::clone(&told) as Arc<dyn Sink>], Routes::default(), FRAME_MAX).await;
        env.test.settle(outcome);
        let copy = env.copy().await;
        assert!(told.0.lock().unwrap().is_empty());
        copy.ack();
        env.settlement().await;
        assert_eq!(*told.0.lock().unwrap(), [(env.test.envelope.id.to_string(), is_dead)]);
    }
}
