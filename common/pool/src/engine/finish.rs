//! Ends tasks: counts them, notifies their owners, and stops those that match an order.

use std::sync::Arc;

use tokio::time::Instant;

use super::core::{HoldOpen, PoolCore};
use crate::{
    cause::Cause,
    completion::Completion,
    ending::Ending,
    group_name::GroupName,
    handle::StopTask,
    panic::{catch, drop_all},
    saturating_instant,
    state::{
        admitted_task::{AdmittedTask, TaskOwner},
        local_queue::EndedTask,
        multi_worker_task::{ShardEnd, TaskEnd},
        notifier::Notifier,
    },
    task::Task,
    task_id::TaskId,
};

/// Ends a task that ran and was removed from its worker. `counted` tells that the worker has counted it.
pub(crate) fn end_running<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    ended: EndedTask<T, C>,
    ending: Ending<T::Output>,
    now: Option<Instant>,
    counted: bool,
) {
    let EndedTask { task: AdmittedTask { seq, id, group, owner, .. }, state } = ended;
    if let Some(since) = state.since
        && core.observer.is_set()
    {
        let now = now.unwrap_or_else(Instant::now);
        core.observer.ended(&core.config.name, now.saturating_duration_since(since), ending.kind());
    }
    if let Some(group) = &group {
        // The next task of the group may start before the completion of this one is called.
        let mut state = core.lock();
        state.queue.release(group);
        core.unlock_and_scale(state);
    }
    end(core, &id, seq, group.as_ref(), owner, ending, counted);
}

/// Ends tasks that waited. The pool does not close before their completions were called.
pub(crate) fn end_waiting<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    tasks: Vec<AdmittedTask<T, C>>,
    cause: Cause,
    hold: HoldOpen<T, C>,
) {
    for task in tasks {
        end_one_waiting(core, task, cause);
    }
    drop(hold);
}

fn end_one_waiting<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    admitted: AdmittedTask<T, C>,
    cause: Cause,
) {
    let AdmittedTask { seq, id, group, shard, task, owner, .. } = admitted;
    drop_all(task);
    let group = group.as_ref();
    match owner {
        TaskOwner::Shard(whole) if shard == 0 => {
            drop_all(whole.take_unstarted());
            if let Some(notifier) = whole.take_notifier() {
                notify(core, &id, group, notifier, Ending::NotStarted { cause }, false);
            }
        }
        // Another shard started, so the task as a whole did.
        owner @ TaskOwner::Shard(_) => {
            end(core, &id, seq, group, owner, Ending::GaveUp { cause, stuck: false }, false);
        }
        owner @ TaskOwner::Single(_) => {
            end(core, &id, seq, group, owner, Ending::NotStarted { cause }, false);
        }
    }
}

/// Stops the tasks that match: ends those that wait, cancels long ones that run. Returns how many tasks and
/// shards that were.
pub(crate) fn stop_matching<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    cause: Cause,
    matches: impl Fn(u64, &TaskId, Option<&GroupName>) -> bool,
) -> usize {
    let now = Instant::now();
    let matches = |task: &AdmittedTask<T, C>| matches(task.seq, &task.id, task.group.as_ref());
    let mut cancelled = Vec::new();
    let (waiting, hold) = {
        let mut state = core.lock();
        let waiting = state.extract(matches);
        for slot in state.workers.iter() {
            if let Some(mut current) = slot.lock().current()
                && matches(current.task)
                && current.state.cancelled(current.task.run).is_none()
                && current.limit(cause, now, core.config.grace)
            {
                cancelled.push((Arc::clone(slot), slot.signal.epoch()));
            }
        }
        (waiting, core.hold_open(&mut state))
    };
    let found = waiting.len() + cancelled.len();
    for (slot, epoch) in cancelled {
        slot.signal.cancel(epoch, cause);
    }
    core.timer.wake_by(saturating_instant::add(now, core.config.grace));
    end_waiting(core, waiting, cause, hold);
    found
}

fn end<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    id: &TaskId,
    seq: u64,
    group: Option<&GroupName>,
    owner: TaskOwner<T, C>,
    ending: Ending<T::Output>,
    counted: bool,
) {
    match owner {
        TaskOwner::Single(notifier) => notify(core, id, group, notifier, ending, counted),
        TaskOwner::Shard(whole) => match whole.shard_ended(ending) {
            ShardEnd::Continue => {}
            ShardEnd::StopSiblings => {
                stop_matching(core, Cause::Stopped, |other, _, _| other == seq);
            }
            ShardEnd::Last(TaskEnd { notifier, outputs, cancelled, failure }) => {
                let ending = match failure {
                    Some(failure) => {
                        drop_all(outputs);
                        failure
                    }
                    None => join::<T>(outputs, cancelled),
                };
                notify(core, id, group, notifier, ending, counted);
            }
        },
    }
}

fn join<T: Task>(outputs: Vec<T::Output>, told: Option<Cause>) -> Ending<T::Output> {
    match catch(|| outputs.into_iter().reduce(T::join)) {
        Ok(Some(output)) => Ending::Finished { output, told },
        Ok(None) | Err(_) => {
            Ending::Panicked { message: "joining the outputs of the shards panicked".to_owned() }
        }
    }
}

/// The one place where the end of a task is counted and its owner notified.
fn notify<T: Task, C: Completion<T::Output>>(
    core: &PoolCore<T, C>,
    id: &TaskId,
    group: Option<&GroupName>,
    notifier: Notifier<C>,
    ending: Ending<T::Output>,
    counted: bool,
) {
    let Notifier { mut completion, handle } = notifier;
    core.counters.count(ending.kind(), counted);
    let outcome = handle.is_some().then(|| ending.outcome());
    if matches!(ending, Ending::Panicked { .. } | Ending::GaveUp { .. })
        && let Err(panic) = catch(|| completion.compensate(id, &ending))
    {
        let trace_id = trace_id(&completion);
        tracing::error!(pool = core.config.name, task = %id, trace_id, panic, "compensation panicked");
    }
    if let Err(panic) = catch(|| completion.complete(ending)) {
        tracing::error!(pool = core.config.name, task = %id, panic, "completion panicked");
    }
    if let (Some(handle), Some(outcome)) = (handle, outcome) {
        handle.end(outcome);
    }
    if let Some(group) = group {
        core.lock().queue.task_ended(group);
    }
}

/// The trace of a task, for log lines.
pub(crate) fn trace_id<O, C: Completion<O>>(completion: &C) -> Option<String> {
    catch(|| completion.trace_id().map(str::to_owned)).ok().flatten()
}

impl<T: Task, C: Completion<T::Output>> StopTask for PoolCore<T, C> {
    fn stop_task(self: Arc<Self>, seq: u64) -> bool {
        stop_matching(&self, Cause::Stopped, |other, _, _| other == seq) > 0
    }
}
