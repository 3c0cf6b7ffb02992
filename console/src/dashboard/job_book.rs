//! The jobs of this program: those that wait or run, and the last ones that ended.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::StatusCode;
use futures_util::future::join_all;
use garenne_common::lock::lock;
use serde_json::Value;
use tokio::time::timeout;

use super::{
    job::{Job, JobState},
    problem::Problem,
};

/// Limit on jobs that wait or run. One runs at a time.
const MAX_ACTIVE: usize = 10;
/// Ended jobs that are kept.
const MAX_ENDED: usize = 50;
/// How long the end of the program waits for the jobs to complete what is in flight.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The jobs, oldest first.
#[derive(Default)]
pub(super) struct JobBook(Mutex<VecDeque<Arc<Job>>>);

impl JobBook {
    /// Adds a job, and forgets the oldest one that ended if there are too many. Refuses it if too many wait or run.
    pub(super) fn add(&self, job: Job) -> Result<Arc<Job>, Problem> {
        let mut jobs = lock(&self.0);
        let active = jobs.iter().filter(|job| !job.state().has_ended()).count();
        if active >= MAX_ACTIVE {
            let detail = format!("{active} jobs wait or run, the limit is {MAX_ACTIVE}: wait, or stop one");
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        if jobs.len() - active >= MAX_ENDED
            && let Some(oldest) = jobs.iter().position(|job| job.state().has_ended())
        {
            jobs.remove(oldest);
        }
        let job = Arc::new(job);
        jobs.push_back(Arc::clone(&job));
        Ok(job)
    }

    pub(super) fn get(&self, id: &str) -> Result<Arc<Job>, Problem> {
        let found = lock(&self.0).iter().find(|job| job.id == id).cloned();
        found.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("no job {id:?}")))
    }

    /// The oldest job that waits or runs.
    pub(super) fn active(&self) -> Option<Arc<Job>> {
        let jobs = lock(&self.0);
        let running = jobs.iter().find(|job| job.state() == JobState::Running);
        running.or_else(|| jobs.iter().find(|job| !job.state().has_ended())).cloned()
    }

    /// All of them as clients see them, newest first.
    pub(super) fn view(&self) -> Vec<Value> {
        lock(&self.0).iter().rev().map(|job| job.view()).collect()
    }

    /// Stops all jobs and waits until they have ended, for a short time.
    pub(super) async fn close(&self) {
        let active: Vec<_> = lock(&self.0).iter().filter(|job| !job.state().has_ended()).cloned().collect();
        active.iter().for_each(|job| job.stop.cancel());
        if timeout(STOP_TIMEOUT, join_all(active.iter().map(|job| job.ended.cancelled()))).await.is_err() {
            tracing::warn!("jobs did not end in time: letters with unconfirmed copies remain in the queue");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dead::{MoveAction, MoveReport};

    fn job() -> Job {
        Job::new(MoveAction::Drop, json!({}), "anna")
    }

    #[test]
    fn the_book_limits_jobs_that_wait_and_keeps_the_last_ones_that_ended() {
        let book = JobBook::default();
        let first = book.add(job()).unwrap();
        for _ in 1..MAX_ACTIVE {
            book.add(job()).unwrap();
        }
        let refused = book.add(job()).unwrap_err();
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        assert_eq!(book.active().unwrap().id, first.id);
        for _ in 0..2 * MAX_ENDED {
            book.active().unwrap().end(Ok(MoveReport::default()));
            book.add(job()).unwrap();
        }
        assert!(book.get(&first.id).is_err(), "the oldest ended job is forgotten");
        let view = book.view();
        assert!(view.len() <= MAX_ACTIVE + MAX_ENDED, "{}", view.len());
        assert_eq!(view[0]["state"], "queued", "the newest is first");
    }

    #[test]
    fn a_running_job_comes_before_those_that_wait() {
        let book = JobBook::default();
        book.add(job()).unwrap();
        let second = book.add(job()).unwrap();
        second.begin();
        assert_eq!(book.active().unwrap().id, second.id);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_stops_the_jobs_and_waits_for_their_end() {
        let book = JobBook::default();
        let waiting = book.add(job()).unwrap();
        let ends = async {
            waiting.stop.cancelled().await;
            waiting.end(Ok(MoveReport { interrupted: true, ..MoveReport::default() }));
        };
        tokio::join!(book.close(), ends);
        assert_eq!(waiting.state(), JobState::Stopped);
        // One that does not end delays the end of the program for a limited time.
        let stuck = book.add(job()).unwrap();
        book.close().await;
        assert!(stuck.stop.is_cancelled() && !stuck.state().has_ended());
    }
}
