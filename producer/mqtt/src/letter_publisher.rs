//! Publishes dead letters to their own exchange.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use garenne_amqp::{DeadLetters, PublishError};
use garenne_gateway::task_publisher::TaskPublisher;
use garenne_protocol::{task::NewTask, topology::Names};

use crate::letter::Letter;

/// Publishes tasks that stand for dead letters to the exchange of dead letters, and others with another publisher. So
/// the spool of a bridge can keep both.
pub struct LetterPublisher {
    tasks: Arc<dyn TaskPublisher>,
    letters: Arc<DeadLetters>,
    names: Names,
}

impl LetterPublisher {
    /// Publishes letters with `letters`, and other tasks with `tasks`.
    pub fn in_front_of(tasks: Arc<dyn TaskPublisher>, letters: Arc<DeadLetters>, names: Names) -> Arc<Self> {
        Arc::new(Self { tasks, letters, names })
    }
}

impl TaskPublisher for LetterPublisher {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        let (mut others, mut letters) = (Vec::with_capacity(tasks.len()), Vec::new());
        for task in tasks {
            match Letter::of_task(&task) {
                Some((letter, bridge)) => letters.push(letter.message(&self.names, &bridge)),
                None => others.push(task),
            }
        }
        if letters.is_empty() {
            return self.tasks.publish(others);
        }
        Box::pin(async move {
            let published =
                async { if others.is_empty() { Ok(()) } else { self.tasks.publish(others).await } };
            let letters = join_all(letters.into_iter().map(|message| self.letters.publish(message)));
            // Waits for every confirm, also after a failure.
            let (published, letters) = tokio::join!(published, letters);
            letters.into_iter().fold(published, Result::and)
        })
    }
}
