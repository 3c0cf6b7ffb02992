//! The thread of a worker, for tasks that block or keep a processor busy.

use std::sync::mpsc;

use crate::panic::{catch, drop_all};

/// A closure that runs a task to its end on a thread.
pub(crate) type BlockingJob = Box<dyn FnOnce() + Send>;

/// The thread of one worker. It is started by the first job and ends with the worker.
#[derive(Default)]
pub(crate) struct WorkerThread {
    jobs: Option<mpsc::Sender<BlockingJob>>,
}

impl WorkerThread {
    /// Sends a job to the thread. `spawn` starts a thread with the given body. Returns false if there is no thread;
    /// the job was then dropped.
    pub(crate) fn run(
        &mut self,
        job: BlockingJob,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
    ) -> bool {
        let jobs = match &self.jobs {
            Some(jobs) => jobs,
            None => {
                let (sender, jobs) = mpsc::channel::<BlockingJob>();
                if spawn(Box::new(move || serve(&jobs))).is_err() {
                    // The job contains the task, whose destructor is user code.
                    drop_all([job]);
                    return false;
                }
                self.jobs.insert(sender)
            }
        };
        let Err(unsent) = jobs.send(job) else { return true };
        self.jobs = None;
        drop_all([unsent]);
        false
    }
}

fn serve(jobs: &mpsc::Receiver<BlockingJob>) {
    for job in jobs {
        // Panics of the task are caught by the job. This catches those of a runtime that shuts down.
        let _ = catch(job);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn start(body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::spawn(body);
        Ok(())
    }

    #[test]
    fn one_thread_runs_all_jobs_and_survives_their_panics() {
        let mut thread = WorkerThread::default();
        let (sender, ids) = mpsc::channel();
        for nth in 0..3 {
            let sender = sender.clone();
            let job = move || {
                sender.send(std::thread::current().id()).unwrap();
                if nth == 1 {
                    std::panic::resume_unwind(Box::new("as asked"));
                }
            };
            assert!(thread.run(Box::new(job), start));
        }
        let ids: Vec<_> = ids.iter().take(3).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[test]
    fn a_job_without_a_thread_is_dropped_and_reported() {
        let mut thread = WorkerThread::default();
        let task = std::sync::Arc::new(());
        let held = std::sync::Arc::clone(&task);
        let sent = thread.run(Box::new(move || drop(held)), |_| Err(io::Error::other("no more threads")));
        assert_eq!((sent, std::sync::Arc::strong_count(&task)), (false, 1));
        // The next job tries again.
        let (sender, ran) = mpsc::channel();
        assert!(thread.run(Box::new(move || sender.send(()).unwrap()), start));
        ran.recv().unwrap();
    }

    #[test]
    fn a_thread_that_ended_is_replaced() {
        let mut thread = WorkerThread::default();
        let end_at_once = |body| {
            drop(body);
            Ok(())
        };
        assert!(!thread.run(Box::new(|| {}), end_at_once));
        let (sender, ran) = mpsc::channel();
        assert!(thread.run(Box::new(move || sender.send(()).unwrap()), start));
        ran.recv().unwrap();
    }
}
