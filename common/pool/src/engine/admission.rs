//! Admits tasks or refuses them. A refusal returns everything that was submitted.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

use super::core::PoolCore;
use crate::{
    batch::Batch,
    completion::Completion,
    handle::{Handle, HandleState, StopTask},
    panic::drop_all,
    refusal::{Refusal, Refused},
    shutdown::Phase,
    spec::Spec,
    state::{
        admitted_task::{AdmittedTask, TaskOwner},
        multi_worker_task::MultiWorkerTask,
        notifier::Notifier,
        pool_state::PoolState,
    },
    task::Task,
};

/// The most tasks that are admitted under one lock, so that other threads wait only briefly for it.
const CHUNK: usize = 64;

/// Admits one task and returns its sequence number.
pub(crate) fn admit<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    spec: Spec,
    task: T,
    completion: C,
    handle: Option<Arc<HandleState>>,
) -> Result<u64, Refused<(T, C)>> {
    let shards = match further_shards(core, spec.width, &task) {
        Ok(shards) => shards,
        Err(reason) => return Err(Refused { reason, task: (task, completion) }),
    };
    let submitted = core.observed_now();
    let mut state = core.lock();
    if let Err(reason) = check_room(core, &state, 1) {
        drop(state);
        drop_all(shards);
        return Err(Refused { reason, task: (task, completion) });
    }
    let seq = enter(&mut state, spec, task, shards, Notifier { completion, handle }, submitted);
    core.unlock_and_scale(state);
    Ok(seq)
}

/// Admits all tasks or none.
#[expect(clippy::type_complexity, reason = "a refusal returns what was submitted")]
pub(crate) fn admit_together<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    tasks: Vec<(Spec, T, C)>,
) -> Result<Batch, Refused<Vec<(Spec, T, C)>>> {
    let mut shards = Vec::with_capacity(tasks.len());
    for (spec, task, _) in &tasks {
        match further_shards(core, spec.width, task) {
            Ok(further) => shards.push(further),
            Err(reason) => {
                drop_all(shards.into_iter().flatten());
                return Err(Refused { reason, task: tasks });
            }
        }
    }
    let mut handles = Vec::with_capacity(tasks.len());
    let stopper: Arc<dyn StopTask> = Arc::clone(core) as Arc<dyn StopTask>;
    let submitted = core.observed_now();
    let mut state = core.lock();
    if let Err(reason) = check_room(core, &state, tasks.len()) {
        drop(state);
        drop_all(shards.into_iter().flatten());
        return Err(Refused { reason, task: tasks });
    }
    for ((spec, task, completion), shards) in tasks.into_iter().zip(shards) {
        let handle = Arc::new(HandleState::default());
        let id = spec.id.clone();
        let notifier = Notifier { completion, handle: Some(Arc::clone(&handle)) };
        let seq = enter(&mut state, spec, task, shards, notifier, submitted);
        handles.push(Handle { id, seq, state: handle, stopper: Arc::clone(&stopper) });
    }
    core.unlock_and_scale(state);
    Ok(Batch { handles })
}

/// Admits tasks from the front. The first refused task and all behind it stay.
pub(crate) fn admit_each<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    tasks: &mut VecDeque<(Spec, T, C)>,
) -> Result<(), Refusal> {
    while let Some((first, _, _)) = tasks.front() {
        if first.width == 1 {
            admit_chunk(core, tasks)?;
        } else if let Some((spec, task, completion)) = tasks.pop_front()
            && let Err(refused) = admit(core, spec.clone(), task, completion, None)
        {
            let (task, completion) = refused.task;
            tasks.push_front((spec, task, completion));
            return Err(refused.reason);
        }
    }
    Ok(())
}

/// Admits tasks up to the next one that needs several workers: its shards are made by user code, which must not
/// run under the lock.
fn admit_chunk<T: Task, C: Completion<T::Output>>(
    core: &Arc<PoolCore<T, C>>,
    tasks: &mut VecDeque<(Spec, T, C)>,
) -> Result<(), Refusal> {
    let submitted = core.observed_now();
    let mut state = core.lock();
    let mut room = Ok(());
    for _ in 0..CHUNK {
        if tasks.front().is_none_or(|(spec, _, _)| spec.width != 1) {
            break;
        }
        room = check_room(core, &state, 1);
        if room.is_err() {
            break;
        }
        if let Some((spec, task, completion)) = tasks.pop_front() {
            let notifier = Notifier { completion, handle: None };
            enter(&mut state, spec, task, Vec::new(), notifier, submitted);
        }
    }
    core.unlock_and_scale(state);
    room
}

/// The shards of a task besides the first.
fn further_shards<T: Task, C: Completion<T::Output>>(
    core: &PoolCore<T, C>,
    width: u32,
    task: &T,
) -> Result<Vec<T>, Refusal> {
    let max = *core.config.workers.end();
    if width == 1 {
        return Ok(Vec::new());
    }
    if width as usize > max {
        return Err(Refusal::TooManyWorkers { asked: width, max });
    }
    let shards: Vec<T> = (1..width).map_while(|_| task.shard()).collect();
    if shards.len() + 1 == width as usize {
        Ok(shards)
    } else {
        drop_all(shards);
        Err(Refusal::NotSharded { asked: width })
    }
}

fn check_room<T: Task, C: Completion<T::Output>>(
    core: &PoolCore<T, C>,
    state: &PoolState<T, C>,
    tasks: usize,
) -> Result<(), Refusal> {
    let limit = core.config.queue;
    if state.phase > Phase::Open {
        Err(Refusal::PoolClosed)
    } else if !state.has_room(tasks as u64, limit as u64, core.counters.ended_elsewhere()) {
        Err(Refusal::QueueFull { limit })
    } else {
        Ok(())
    }
}

#[inline(always)]
fn enter<T: Task, C: Completion<T::Output>>(
    state: &mut PoolState<T, C>,
    spec: Spec,
    task: T,
    shards: Vec<T>,
    notifier: Notifier<C>,
    submitted: Option<Instant>,
) -> u64 {
    let Spec { id, run, group, width, placement } = spec;
    let seq = state.admitted;
    state.admitted += 1;
    let (shard, task) = (0, Some(task));
    // Most tasks are plain and take a path of their own. A value that two paths build in parts is moved once more
    // and read back before its parts have reached the cache.
    if width == 1 && group.is_none() {
        let owner = TaskOwner::Single(notifier);
        state.queue.push_plain(AdmittedTask {
            seq,
            id,
            run,
            placement,
            group: None,
            shard,
            width,
            submitted,
            task,
            owner,
        });
        return seq;
    }
    let owner = match width {
        1 => TaskOwner::Single(notifier),
        _ => TaskOwner::Shard(Arc::new(MultiWorkerTask::new(shards, width, notifier))),
    };
    state.queue.push(AdmittedTask { seq, id, run, placement, group, shard, width, submitted, task, owner });
    seq
}
