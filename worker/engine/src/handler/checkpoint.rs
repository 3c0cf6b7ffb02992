//! Checkpoints: what a handler leaves for the next attempt at its task.

use garenne_protocol::task::{MAX_CHECKPOINT, header};
use serde::{Serialize, de::DeserializeOwned};

use super::{TaskContext, TaskError};

impl TaskContext {
    /// Leaves a value for the next attempt, in place of an earlier one of this attempt: how far the work has come. At most
    /// 4,096 bytes as JSON.
    ///
    /// The next attempt [reads](Self::last_checkpoint) it after an error, a timeout or a [snooze](TaskError::snooze). The copy
    /// of the task carries it, so nothing is sent or stored now. After a crash of the worker, a lost connection or a stop
    /// that hands the task back there is no copy, and the next attempt reads that of the attempt before this one. So the
    /// work since then is done again; what it does must be [idempotent](super).
    ///
    /// It has no effect once the attempt has requested a [follow-up](Self::follow_up). Follow-ups of an attempt that fails are
    /// not published, so the next attempt begins where they are requested again. Work that is to be both continued and
    /// followed up is done in two steps: first what has checkpoints, then the follow-ups.
    ///
    /// ```
    /// # use garenne::{TaskContext, TaskError};
    /// async fn import(cx: TaskContext, rows: Vec<String>) -> Result<usize, TaskError> {
    ///     let done = cx.last_checkpoint::<usize>().unwrap_or(0);
    ///     for (index, row) in rows.iter().enumerate().skip(done) {
    ///         store(row).await.map_err(TaskError::retry)?;
    ///         cx.checkpoint(&(index + 1))?;
    ///     }
    ///     Ok(rows.len())
    /// }
    /// # async fn store(_: &str) -> std::io::Result<()> { Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A [rejection](TaskError::reject) if the value cannot be written as JSON or is too large.
    pub fn checkpoint<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), TaskError> {
        let refused = |problem: String| TaskError::reject(format!("checkpoint: {problem}"));
        let json = serde_json::to_string(value).map_err(|error| refused(error.to_string()))?;
        if json.len() > MAX_CHECKPOINT {
            return Err(refused(format!("it has {} bytes, {MAX_CHECKPOINT} are allowed", json.len())));
        }
        if !self.has_follow_ups() {
            self.checkpoints().set(self.envelope(), json.into());
        }
        Ok(())
    }

    /// The [checkpoint](Self::checkpoint) of the last attempt that failed, was deferred or timed out. [`None`] if there is
    /// none, or if it is no `T`, such as one of an earlier version of the program.
    pub fn last_checkpoint<T: DeserializeOwned>(&self) -> Option<T> {
        let json = self.header_text(header::CHECKPOINT)?;
        serde_json::from_str(json).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        TaskOptions, Worker, WorkerConfig, json_payload,
        testing::{TestOutcome, TestWorker},
    };

    /// Where the attempt ends.
    #[derive(serde::Deserialize)]
    struct Count {
        until: u32,
        ending: String,
    }
    json_payload!(Count, "test.count");

    async fn count(cx: TaskContext, Count { until, ending }: Count) -> Result<u32, TaskError> {
        let from = cx.last_checkpoint::<u32>().unwrap_or(0);
        for done in from + 1..=until {
            cx.checkpoint(&done)?;
        }
        match ending.as_str() {
            "error" => Err(TaskError::retry("failed")),
            "snooze" => Err(TaskError::snooze(Duration::from_secs(1))),
            "panic" => panic!("as asked"),
            "timeout" => std::future::pending().await,
            "large" => cx.checkpoint(&"x".repeat(MAX_CHECKPOINT)).map(|()| 0),
            "none" => Err(TaskError::retry("without a checkpoint")),
            _ => Ok(from),
        }
    }

    fn worker() -> TestWorker {
        let options = TaskOptions::long().deadline(Duration::from_secs(1));
        TestWorker::new(Worker::builder(WorkerConfig::default()).handle_with(count, options)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_attempt_reads_the_checkpoint_of_an_attempt_that_did_not_succeed() {
        for ending in ["error", "snooze", "panic", "timeout"] {
            let worker = worker();
            let attempt = |until: u32, ending: &str| {
                worker.task("test.count", format!(r#"{{"until":{until},"ending":"{ending}"}}"#)).id("a")
            };
            let first = attempt(3, ending).run().await;
            assert!(
                matches!(first, TestOutcome::Retry { .. } | TestOutcome::Defer(_)),
                "{ending}: {first:?}"
            );
            // An attempt that leaves none keeps the one before.
            let second = attempt(3, "none").attempt(2).run().await;
            assert!(matches!(second, TestOutcome::Retry { .. }), "{second:?}");
            let TestOutcome::Done(output) = attempt(5, "").attempt(3).run().await else { panic!("{ending}") };
            assert_eq!(output.json.get(), "3", "{ending}");
        }
    }

    #[tokio::test]
    async fn follow_ups_of_a_failed_attempt_are_requested_again_in_spite_of_checkpoints() {
        async fn notify(cx: TaskContext, Count { until, .. }: Count) -> Result<u32, TaskError> {
            cx.checkpoint(&2)?;
            let from = cx.last_checkpoint::<u32>().unwrap_or(0);
            for n in from..until {
                if n == 7 && cx.attempt() == 1 {
                    return Err(TaskError::retry("failed"));
                }
                cx.follow_up("email.send", &n)?;
                cx.checkpoint(&(n + 1))?;
            }
            Ok(from)
        }
        let worker = TestWorker::new(Worker::builder(WorkerConfig::default()).handle(notify)).unwrap();
        let attempt = || worker.task("test.count", r#"{"until":10,"ending":""}"#).id("a");
        let first = attempt().run().await;
        assert!(matches!(first, TestOutcome::Retry { .. }), "{first:?}");
        let TestOutcome::Done(output) = attempt().attempt(2).run().await else { panic!("it succeeds") };
        assert_eq!((output.json.get(), output.follow_ups.len()), ("2", 8));
    }

    #[tokio::test]
    async fn a_checkpoint_of_another_type_is_none_and_a_large_one_is_refused() {
        let worker = worker();
        let task = |ending: &str| worker.task("test.count", format!(r#"{{"until":0,"ending":"{ending}"}}"#));
        let TestOutcome::Done(output) = task("").checkpoint(&"seven").run().await else {
            panic!("it succeeds")
        };
        assert_eq!(output.json.get(), "0");
        let TestOutcome::Done(output) = task("").checkpoint(&7).run().await else { panic!("it succeeds") };
        assert_eq!(output.json.get(), "7");
        let TestOutcome::Dead { error, .. } = task("large").run().await else { panic!("it is refused") };
        assert_eq!(error, "checkpoint: it has 4098 bytes, 4096 are allowed");
    }
}
