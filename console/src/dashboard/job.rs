//! A replay or a drop that runs in the background.

use std::{
    sync::{Arc, Mutex},
    time::SystemTime,
};

use garenne_common::{exit::Failure, lock::lock};
use garenne_protocol::task::{TaskId, epoch_ms};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::dead::{MoveAction, MoveProgress, MoveReport};

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(super) enum JobState {
    /// It waits for the jobs and lists before it.
    Queued,
    /// It reads and moves letters.
    Running,
    /// It went through the whole queue. Letters that could not be moved are among its failures.
    Done,
    /// An error ended it.
    Failed,
    /// A person or the end of the program stopped it.
    Stopped,
}

impl JobState {
    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Stopped)
    }
}

/// A replay or a drop of dead letters. It runs to its end whether or not a client waits for it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: String,
    pub(super) action: MoveAction,
    /// The selection, as the request had it.
    selection: Value,
    /// The person who started it.
    by: String,
    created_at: i64,
    pub(super) progress: Arc<MoveProgress>,
    /// Cancelled when the job should stop: it moves nothing more and completes what is in flight.
    pub(super) stop: CancellationToken,
    /// Cancelled when it has ended.
    pub(super) ended: CancellationToken,
    course: Mutex<Course>,
}

/// The states of a job so far.
#[derive(Debug)]
struct Course {
    state: JobState,
    started_at: Option<i64>,
    ended_at: Option<i64>,
    report: Value,
    error: Option<String>,
}

impl Job {
    pub(super) fn new(action: MoveAction, selection: Value, by: &str) -> Self {
        Self {
            id: TaskId::random().as_str().to_owned(),
            action,
            selection,
            by: by.to_owned(),
            created_at: now(),
            progress: Arc::default(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
            course: Mutex::new(Course {
                state: JobState::Queued,
                started_at: None,
                ended_at: None,
                report: Value::Null,
                error: None,
            }),
        }
    }

    pub(super) fn state(&self) -> JobState {
        lock(&self.course).state
    }

    /// The job begins to read the queue.
    pub(super) fn begin(&self) {
        let mut course = lock(&self.course);
        (course.state, course.started_at) = (JobState::Running, Some(now()));
    }

    /// The job has ended. The first result counts.
    pub(super) fn end(&self, outcome: Result<MoveReport, Failure>) {
        let mut course = lock(&self.course);
        if course.state.has_ended() {
            return;
        }
        course.ended_at = Some(now());
        match outcome {
            Ok(report) => {
                course.state = if report.interrupted { JobState::Stopped } else { JobState::Done };
                course.report = report.record();
            }
            Err(failure) => {
                course.state = JobState::Failed;
                course.error = Some(failure.to_string());
            }
        }
        drop(course);
        self.ended.cancel();
    }

    /// As clients see it.
    pub(super) fn view(&self) -> Value {
        let Course { state, started_at, ended_at, report, error } = &*lock(&self.course);
        json!({
            "id": self.id,
            "action": self.action,
            "selection": self.selection,
            "by": self.by,
            "state": state,
            "created_at": self.created_at,
            "started_at": started_at,
            "ended_at": ended_at,
            "progress": self.progress.counts(),
            "report": report,
            "error": error,
        })
    }
}

fn now() -> i64 {
    epoch_ms(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use garenne_common::exit::Exit;

    use super::*;

    fn job() -> Job {
        Job::new(MoveAction::Replay, json!({"ids": ["a"]}), "anna")
    }

    #[test]
    fn a_job_goes_from_queued_to_its_result() {
        let job = job();
        assert_eq!((job.state(), job.view()["started_at"].is_null()), (JobState::Queued, true));
        job.begin();
        assert_eq!((job.state(), job.ended.is_cancelled()), (JobState::Running, false));
        job.end(Ok(MoveReport { moved: 3, read: 5, ..MoveReport::default() }));
        let view = job.view();
        assert_eq!((&view["state"], &view["report"]["moved"]), (&json!("done"), &json!(3)));
        assert_eq!((&view["action"], &view["by"]), (&json!("replay"), &json!("anna")));
        assert!(job.ended.is_cancelled() && view["ended_at"].is_number(), "{view}");
    }

    #[test]
    fn the_first_result_of_a_job_counts() {
        let stopped = job();
        stopped.end(Ok(MoveReport { interrupted: true, ..MoveReport::default() }));
        stopped.end(Err(Failure::new(Exit::Failed, "late")));
        assert_eq!((stopped.state(), &stopped.view()["error"]), (JobState::Stopped, &Value::Null));
        let failed = job();
        failed.end(Err(Failure::new(Exit::Failed, "the broker is away")));
        assert_eq!(
            (failed.state(), &failed.view()["error"]),
            (JobState::Failed, &json!("the broker is away"))
        );
    }
}
