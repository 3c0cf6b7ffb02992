//! Waiting for the result of a task.

use std::time::Duration;

use garenne_protocol::task::{TaskId, new_uuid};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Enqueue, error::EnqueueError, task_of};

/// Why there is no result of a task that was waited for.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The task is not known to be stored.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// The handler [rejected](crate::TaskError::reject) the task, or a sink its result. It is a dead letter.
    #[error("task {id} was rejected: {error}")]
    Rejected {
        /// The task.
        id: TaskId,
        /// The error, with all causes; of more than 1,000 bytes it has lost its middle.
        error: String,
    },
    /// The task is a dead letter for another reason.
    #[error("task {id} is a dead letter ({reason}): {error}")]
    Dead {
        /// The task.
        id: TaskId,
        /// The reason as in the header `garenne-reason`, such as `invalid-payload` (the payload cannot be read, or the handler
        /// returned [`TaskError::invalid`](crate::TaskError::invalid)), `attempts-exhausted`, `expired` or `stopped`.
        reason: String,
        /// The error, as for [`Rejected`](Self::Rejected).
        error: String,
    },
    /// The broker has the task, and no answer arrived in time. It may still wait, run or be retried. Or no lane of the fleet
    /// takes its kind, so that it is in `garenne.unroutable`, which the broker confirms too. Or it has run and its answer is
    /// lost: RabbitMQ 4.0 drops answers in the moments after its start.
    #[error(
        "no answer for task {id} within {}: the broker has it, and it may still wait, run or be retried, or no lane takes its kind (`garenne unroutable list`). Workers answer unless their \
         setting replies is false; the broker and operators do not answer for tasks that they remove",
        humantime::format_duration(*waited)
    )]
    TimedOut {
        /// The task.
        id: TaskId,
        /// The timeout.
        waited: Duration,
    },
    /// The task was stored, and the connection ended before the answer. The answer is lost; the task may have run or will.
    /// The next call opens the connection again.
    #[error(
        "the connection ended before the answer for task {id}: the task was stored and may have run; its answer is lost"
    )]
    ConnectionLost {
        /// The task.
        id: TaskId,
    },
    /// The task succeeded, and its output has another type.
    #[error("the output of task {id} is not the expected type: {error}")]
    Output {
        /// The task.
        id: TaskId,
        /// The error of the deserializer.
        error: String,
    },
}

/// What a worker answers: either field is present.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    dead: Option<Dead>,
}

#[derive(Deserialize)]
struct Dead {
    reason: String,
    error: String,
}

impl Enqueue<'_> {
    /// Publishes the task and waits for its result, at most this long: the handler's output as a `T`.
    ///
    /// A task that is retried is answered at its end. Any number of waits share a connection of their own, which the first one
    /// opens. Nothing is stored besides the task: an answer that arrives too late is dropped. If the same id is published
    /// again, only the copy that runs answers, to its own caller.
    ///
    /// ```no_run
    /// # use garenne::{Client, WaitError, json_payload};
    /// # use std::time::Duration;
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Resize {
    ///     url: String,
    ///     width: u32,
    /// }
    /// json_payload!(Resize, "image.resize");
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Resized {
    ///     url: String,
    /// }
    ///
    /// # async fn run(client: Client) -> Result<(), WaitError> {
    /// let task = client.enqueue(Resize { url: "a.png".into(), width: 80 });
    /// match task.wait::<Resized>(Duration::from_secs(30)).await {
    ///     Ok(resized) => println!("{}", resized.url),
    ///     Err(WaitError::Rejected { error, .. }) => println!("cannot be resized: {error}"),
    ///     Err(WaitError::TimedOut { id, .. }) => println!("{id} may still run"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`WaitError`]: the task is not stored, is a dead letter, or has no answer.
    #[doc(alias = "enqueue_and_wait")]
    pub async fn wait<T: DeserializeOwned>(self, wait: Duration) -> Result<T, WaitError> {
        let Self { client, draft } = self;
        let task = task_of(draft)?;
        let id = task.id.clone();
        let until = Instant::now().checked_add(wait);
        let correlation = new_uuid().to_string();
        let requesting = client.request(task, &correlation);
        let unconfirmed =
            |_| EnqueueError::TimedOut(format!("no confirm within {}", humantime::format_duration(wait)));
        let reply = timeout(wait, requesting).await.map_err(unconfirmed)??;
        let answer = match until {
            Some(until) => timeout_at(until, reply).await,
            None => Ok(reply.await),
        };
        match answer {
            Ok(Some(body)) => read(id, &body),
            Ok(None) => Err(WaitError::ConnectionLost { id }),
            Err(_) => Err(WaitError::TimedOut { id, waited: wait }),
        }
    }
}

fn read<T: DeserializeOwned>(id: TaskId, body: &[u8]) -> Result<T, WaitError> {
    let answer = serde_json::from_slice::<Answer<'_>>(body);
    let output = match answer {
        Ok(Answer { dead: Some(Dead { reason, error }), .. }) => {
            return Err(match reason.as_str() {
                "rejected" => WaitError::Rejected { id, error },
                _ => WaitError::Dead { id, reason, error },
            });
        }
        // A null is an output as well, and reads as no field.
        Ok(Answer { output, .. }) => serde_json::from_str(output.map_or("null", RawValue::get)),
        Err(error) => Err(error),
    };
    output.map_err(|error| WaitError::Output { id, error: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer<T: DeserializeOwned>(body: &str) -> Result<T, WaitError> {
        read(TaskId::parse("t").unwrap(), body.as_bytes())
    }

    #[test]
    fn an_answer_is_the_output_or_what_became_of_the_task() {
        assert_eq!(answer::<u32>(r#"{"task_id":"t","output":7}"#).unwrap(), 7);
        answer::<()>(r#"{"output":null}"#).unwrap();
        let text = |body: &str| answer::<u32>(body).unwrap_err().to_string();
        let dead =
            |reason: &str| format!(r#"{{"task_id":"t","dead":{{"reason":"{reason}","error":"why"}}}}"#);
        assert_eq!(text(&dead("rejected")), "task t was rejected: why");
        assert_eq!(text(&dead("poison")), "task t is a dead letter (poison): why");
        let wrong = text(r#"{"output":"x"}"#);
        assert!(wrong.starts_with("the output of task t is not the expected type: invalid type"), "{wrong}");
        assert!(text("{").starts_with("the output of task t is not"), "an answer that is cut");
    }
}
