//! The end of a task: counted, then told.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    Cause, Completion, Ending, GroupName, Task, TaskId,
    cell::Ended,
    entry::{Entry, Finish, Owner},
    shared::Shared,
    wide::ShardEnd,
};

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    /// The running task is over and out of its worker's slot. `counted` when the worker has
    /// counted it.
    pub(super) fn end_current(
        self: &Arc<Self>,
        ended: Ended<T, C>,
        ending: Ending<T::Output>,
        now: Option<Instant>,
        counted: bool,
    ) {
        let Ended { entry: Entry { seq, id, group, owner, .. }, running } = ended;
        if let (Some(observer), Some(since)) = (self.options.observer.as_deref(), running.since) {
            let now = now.unwrap_or_else(Instant::now);
            observer.ended(now.saturating_duration_since(since), ending.kind());
        }
        if let Some(group) = &group {
            // Room for the next of the group before anybody hears of this end.
            let staffing = {
                let mut board = self.lock();
                board.lane.release(group);
                self.staff(&mut board)
            };
            self.apply(staffing);
        }
        self.end(&id, seq, group.as_ref(), owner, ending, counted);
    }

    /// A task that waited is over.
    pub(super) fn end_waiting(self: &Arc<Self>, entry: Entry<T, C>, cause: Cause) {
        let Entry { seq, id, group, shard, task, owner, .. } = entry;
        // The task's own destructor is user code.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
        match owner {
            Owner::Wide(wide) if shard == 0 => {
                if let Some(finish) = wide.never_started() {
                    self.conclude(&id, group.as_ref(), finish, Ending::NotStarted { cause }, false);
                }
            }
            // Its siblings started, so the task as a whole was.
            owner @ Owner::Wide(_) => {
                self.end(&id, seq, group.as_ref(), owner, Ending::GaveUp { cause, stuck: false }, false);
            }
            owner @ Owner::One(_) => {
                self.end(&id, seq, group.as_ref(), owner, Ending::NotStarted { cause }, false);
            }
        }
    }

    fn end(
        self: &Arc<Self>,
        id: &TaskId,
        seq: u64,
        group: Option<&GroupName>,
        owner: Owner<T, C>,
        ending: Ending<T::Output>,
        counted: bool,
    ) {
        match owner {
            Owner::One(finish) => self.conclude(id, group, finish, ending, counted),
            Owner::Wide(wide) => match wide.shard_ended(ending) {
                ShardEnd::Continue => {}
                ShardEnd::StopSiblings => {
                    self.stop_where(Cause::Stopped, |other, _, _| other == seq);
                }
                ShardEnd::Last { finish, parts } => {
                    let ending = match parts {
                        Err(failure) => failure,
                        Ok((outputs, told)) => joined::<T>(outputs, told),
                    };
                    self.conclude(id, group, finish, ending, counted);
                }
            },
        }
    }

    /// The one place where a task's end is counted and told.
    fn conclude(
        &self,
        id: &TaskId,
        group: Option<&GroupName>,
        finish: Finish<C>,
        ending: Ending<T::Output>,
        counted: bool,
    ) {
        let Finish { mut completion, handle } = finish;
        self.count(ending.kind(), counted);
        let outcome = handle.is_some().then(|| ending.outcome());
        if matches!(ending, Ending::Panicked { .. } | Ending::GaveUp { .. }) {
            let undo = catch_unwind(AssertUnwindSafe(|| completion.compensate(id, &ending)));
            if undo.is_err() {
                let trace_id = completion.trace_id();
                tracing::error!(pool = self.config.name, task = %id, trace_id, "the compensation hook panicked");
            }
        }
        if catch_unwind(AssertUnwindSafe(|| completion.complete(ending))).is_err() {
            tracing::error!(pool = self.config.name, task = %id, "the completion panicked");
        }
        if let (Some(handle), Some(outcome)) = (handle, outcome) {
            handle.end(outcome);
        }
        if let Some(group) = group {
            self.lock().lane.ended(group);
        }
    }
}

fn joined<T: Task>(outputs: Vec<T::Output>, told: Option<Cause>) -> Ending<T::Output> {
    match catch_unwind(AssertUnwindSafe(|| outputs.into_iter().reduce(T::join))) {
        Ok(Some(output)) => Ending::Finished { output, told },
        Ok(None) | Err(_) => Ending::Panicked { message: "joining the shards' outputs panicked".to_owned() },
    }
}
