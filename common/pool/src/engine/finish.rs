//! Ends tasks: counts them, notifies their owners, and stops those that match an order.

use std::sync::Arc;

use tokio::time::Instant;

use super::core::PoolCore;
use crate::{
    atomic::cancel_state::Epoch,
    ending::{Cause, Ending},
    handle::StopTask,
    panic::{catch, drop_all, lock},
    pool_types::PoolTypes,
    spec::Spec,
    state::{
        pool_state::{LockedState, PoolState},
        task::{AdmittedTask, Notifier, ShardEnd, TaskOwner},
        worker_slot::{EndedTask, WorkerSlot},
    },
    task::{Completion, Task},
    timer::saturating_add,
};

/// Ends a task that ran and was removed from its worker. `counted` tells that the worker has counted it.
pub(crate) fn end_running<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    ended: EndedTask<P>,
    ending: Ending<P::Output>,
    now: Option<Instant>,
    counted: bool,
) {
    let EndedTask { task: AdmittedTask { seq, spec, shard, owner, .. }, state } = ended;
    if let Some(since) = state.since {
        core.observe(|observer| {
            let now = now.unwrap_or_else(Instant::now);
            observer.ended(now.saturating_duration_since(since), ending.kind());
        });
    }
    if let Some(group) = &spec.group {
        // The next task of the group may start before the completion of this one is called.
        let mut state = core.lock();
        state.queue.release(group);
        core.unlock_and_tick(state, false);
    }
    if spec.helpers && shard == 0 {
        // Those that have not started have nothing left to do.
        let unused = core.lock().queue.remove_helpers(seq);
        unused.into_iter().for_each(|helper| end_waiting(core, helper, Cause::Stopped));
    }
    end(core, &spec, seq, owner, Some(ending), counted);
}

/// The running tasks that must be cancelled once the lock is released.
pub(crate) type ToCancel<P> = Vec<(Arc<WorkerSlot<P>>, Epoch)>;

/// Limits the time of the running tasks that match. The caller passes the result to [`unlock_and_stop`].
pub(crate) fn limit_running<P: PoolTypes>(
    core: &PoolCore<P>,
    state: &PoolState<P>,
    cause: Cause,
    give_up_at: Instant,
    matches: impl Fn(&WorkerSlot<P>, &AdmittedTask<P>) -> bool,
) -> ToCancel<P> {
    let mut cancelled = Vec::new();
    for slot in state.workers.iter() {
        if let Some(mut current) = slot.lock().current()
            && matches(slot, current.task)
            && current.limit(cause, give_up_at)
        {
            cancelled.push((Arc::clone(slot), slot.signal.state.epoch()));
        }
    }
    core.timer.wake_by(give_up_at);
    cancelled
}

/// Releases the lock, cancels `running` and ends `waiting`, which was removed from the queue. The pool does not close
/// before the completions of these tasks were called. Returns how many tasks and shards that were.
pub(crate) fn unlock_and_stop<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    mut state: LockedState<'_, P>,
    cause: Cause,
    waiting: Vec<AdmittedTask<P>>,
    running: ToCancel<P>,
) -> usize {
    let stopped = waiting.len() + running.len();
    let hold = core.hold_open(&mut state);
    core.unlock_and_scale(state);
    for (slot, epoch) in running {
        slot.signal.cancel(epoch, cause);
    }
    for task in waiting {
        end_waiting(core, task, cause);
    }
    drop(hold);
    stopped
}

fn end_waiting<P: PoolTypes>(core: &Arc<PoolCore<P>>, admitted: AdmittedTask<P>, cause: Cause) {
    let AdmittedTask { seq, spec, shard, task, owner, .. } = admitted;
    drop_all(task);
    let ending = match &owner {
        TaskOwner::Shard(whole) if shard == 0 => {
            let mut whole = lock(whole);
            let (unstarted, notifier) = (std::mem::take(&mut whole.unstarted), whole.notifier.take());
            drop(whole);
            drop_all(unstarted);
            if let Some(notifier) = notifier {
                notify(core, &spec, notifier, Ending::NotStarted { cause }, false);
            }
            return;
        }
        TaskOwner::Shard(_) if spec.helpers => None,
        // Another shard started, so the task as a whole did.
        TaskOwner::Shard(_) => Some(Ending::GaveUp { cause, stuck: false }),
        TaskOwner::Single(_) => Some(Ending::NotStarted { cause }),
    };
    end(core, &spec, seq, owner, ending, false);
}

/// Stops the tasks that match: ends those that wait, cancels long ones that run. Returns how many tasks and
/// shards that were.
pub(crate) fn stop_matching<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    cause: Cause,
    matches: impl Fn(u64, &Spec) -> bool,
) -> usize {
    let matches = |task: &AdmittedTask<P>| matches(task.seq, &task.spec);
    let give_up_at = saturating_add(Instant::now(), core.config.grace);
    let mut state = core.lock();
    let waiting = state.extract(matches);
    let running = limit_running(core, &state, cause, give_up_at, |_, task| matches(task));
    unlock_and_stop(core, state, cause, waiting, running)
}

fn end<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    spec: &Spec,
    seq: u64,
    owner: TaskOwner<P>,
    ending: Option<Ending<P::Output>>,
    counted: bool,
) {
    let whole = match owner {
        TaskOwner::Single(notifier) => {
            if let Some(ending) = ending {
                notify(core, spec, notifier, ending, counted);
            }
            return;
        }
        TaskOwner::Shard(whole) => whole,
    };
    let shard_end = lock(&whole).shard_ended(ending);
    match shard_end {
        ShardEnd::Continue => {}
        ShardEnd::StopSiblings => {
            stop_matching(core, Cause::Stopped, |other, _| other == seq);
        }
        ShardEnd::Last { notifier, outputs, cancelled, failure } => {
            let ending = match failure {
                Some(failure) => {
                    drop_all(outputs);
                    failure
                }
                None => join::<P::Task>(outputs, cancelled),
            };
            notify(core, spec, notifier, ending, counted);
        }
    }
}

fn join<T: Task>(outputs: Vec<T::Output>, cancelled_by: Option<Cause>) -> Ending<T::Output> {
    match catch(|| outputs.into_iter().reduce(T::join)) {
        Ok(Some(output)) => Ending::Finished { output, cancelled_by },
        Ok(None) | Err(_) => {
            Ending::Panicked { message: "joining the outputs of the shards panicked".to_owned() }
        }
    }
}

/// The one place where the end of a task is counted and its owner notified.
fn notify<P: PoolTypes>(
    core: &PoolCore<P>,
    spec: &Spec,
    notifier: Notifier<P::Completion>,
    ending: Ending<P::Output>,
    counted: bool,
) {
    let Notifier { mut completion, handle } = notifier;
    let (pool, id) = (&core.config.name, &spec.id);
    core.counters.count(ending.kind(), counted);
    let outcome = handle.is_some().then(|| ending.outcome());
    if matches!(ending, Ending::Panicked { .. } | Ending::GaveUp { .. })
        && let Err(panic) = catch(|| completion.compensate(id, &ending))
    {
        let trace_id = trace_id(&completion);
        tracing::error!(pool, task = %id, trace_id, panic, "compensation panicked");
    }
    if let Err(panic) = catch(|| completion.complete(ending)) {
        tracing::error!(pool, task = %id, panic, "completion panicked");
    }
    if let (Some(handle), Some(outcome)) = (handle, outcome) {
        handle.end(outcome);
    }
    if let Some(group) = &spec.group {
        core.lock().queue.task_ended(group);
    }
}

/// The trace of a task, for log lines.
pub(crate) fn trace_id<O, C: Completion<O>>(completion: &C) -> Option<String> {
    catch(|| completion.trace_id().map(str::to_owned)).ok().flatten()
}

impl<P: PoolTypes> StopTask for PoolCore<P> {
    fn stop_task(self: Arc<Self>, seq: u64) -> bool {
        stop_matching(&self, Cause::Stopped, |other, _| other == seq) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::{engine::tests::TestCore, id::GroupName, state::workers::Mode};

    /// A worker that is stuck in its task does not look for the next one.
    #[test]
    fn the_end_of_a_task_that_is_given_up_wakes_a_worker_for_the_next_task_of_its_group() {
        let test = TestCore::new(1..=2, 2);
        let group = GroupName::from("g");
        test.core.lock().queue.configure(&group, |group| group.cap = Some(1));
        let (stuck, other) = (test.add_worker(), test.add_worker());
        for id in ["stuck", "next"] {
            test.submit(Spec::long(id).group("g")).unwrap();
        }
        let mut cx = Context::from_waker(Waker::noop());
        assert!(test.worker(&stuck).next_task(&mut Default::default(), &mut cx).is_ready());
        assert!(test.worker(&other).next_task(&mut Default::default(), &mut cx).is_pending());
        let ended = stuck.lock().finish().unwrap();
        let ending = Ending::GaveUp { cause: Cause::Deadline, stuck: true };
        end_running(&test.core, ended, ending, None, false);
        assert_eq!(test.core.lock().workers.count(Mode::Idle), 0);
    }
}
