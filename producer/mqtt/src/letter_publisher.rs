//! Publishes dead letters to their own exchange.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use garenne_amqp::{DeadLetters, Message, PublishError};
use garenne_gateway::task_publisher::TaskPublisher;
use garenne_protocol::{
    task::{Kind, NewTask, UNMAPPED_TASK_KIND},
    topology::Names,
};

use crate::letter::Letter;

/// Publishes tasks that stand for dead letters to the exchange of dead letters, and others with another publisher. So
/// the spool of a bridge can keep both.
///
/// While neither queue takes dead letters, a task that stands for one is published as a task of another kind. A bridge acknowledges
/// messages in the order in which they came, and its spool is drained in order: a letter that waits would hold all
/// readings behind it. A worker makes the task a dead letter again, and holds or puts off what it cannot publish.
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

    /// Publishes a dead letter, or the task that stands for it if neither queue takes letters.
    async fn publish_letter(&self, letter: Message, task: NewTask) -> Result<(), PublishError> {
        let published = self.letters.publish_at_once(letter).await;
        if published.is_err() && self.letters.is_closed() {
            let kind = Kind::parse(UNMAPPED_TASK_KIND).expect("a constant");
            return self.tasks.publish(vec![NewTask { kind, ..task }]).await;
        }
        published
    }
}

impl TaskPublisher for LetterPublisher {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        let (mut others, mut letters) = (Vec::with_capacity(tasks.len()), Vec::new());
        for task in tasks {
            match Letter::of_task(&task) {
                Some((letter, bridge)) => letters.push((letter.message(&self.names, &bridge), task)),
                None => others.push(task),
            }
        }
        if letters.is_empty() {
            return self.tasks.publish(others);
        }
        Box::pin(async move {
            let published =
                async { if others.is_empty() { Ok(()) } else { self.tasks.publish(others).await } };
            let letters =
                join_all(letters.into_iter().map(|(letter, task)| self.publish_letter(letter, task)));
            // Waits for every confirm, also after a failure.
            let (published, letters) = tokio::join!(published, letters);
            letters.into_iter().fold(published, Result::and)
        })
    }
}
