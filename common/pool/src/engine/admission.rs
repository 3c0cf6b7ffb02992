//! Admits tasks or refuses them. A refusal returns everything that was submitted.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::time::Instant;

use super::core::PoolCore;
use crate::{
    handle::{Batch, Handle, HandleState, StopTask},
    panic::drop_all,
    pool_types::{PoolTypes, Submission},
    refusal::{Refusal, Refused},
    shutdown::Phase,
    spec::Spec,
    state::{
        pool_state::PoolState,
        task::{AdmittedTask, MultiWorkerTask, Notifier, TaskOwner},
    },
    task::Task,
};

/// The most tasks that are admitted under one lock, so that other threads wait only briefly for it.
const CHUNK: usize = 64;

/// Admits one task and returns its sequence number.
#[expect(clippy::type_complexity, reason = "a refusal returns what was submitted")]
pub(crate) fn admit<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    mut spec: Spec,
    task: P::Task,
    completion: P::Completion,
    handle: Option<Arc<HandleState>>,
) -> Result<u64, Refused<(P::Task, P::Completion)>> {
    let shards = match further_shards(&task, &mut spec, *core.config.workers.end()) {
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
pub(crate) fn admit_together<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    mut tasks: Vec<Submission<P>>,
) -> Result<Batch, Refused<Vec<Submission<P>>>> {
    let mut shards = Vec::with_capacity(tasks.len());
    let sharded = tasks.iter_mut().try_for_each(|(spec, task, _)| {
        shards.push(further_shards(task, spec, *core.config.workers.end())?);
        Ok(())
    });
    let mut handles = Vec::with_capacity(tasks.len());
    let stopper: Arc<dyn StopTask> = Arc::<PoolCore<P>>::clone(core);
    let submitted = core.observed_now();
    let mut state = core.lock();
    if let Err(reason) = sharded.and_then(|()| check_room(core, &state, tasks.len())) {
        drop(state);
        drop_all(shards.into_iter().flatten());
        return Err(Refused { reason, task: tasks });
    }
    for ((spec, task, completion), shards) in tasks.into_iter().zip(shards) {
        let (id, handle) = (spec.id.clone(), HandleState::new());
        let notifier = Notifier { completion, handle: Some(Arc::clone(&handle)) };
        let seq = enter(&mut state, spec, task, shards, notifier, submitted);
        handles.push(Handle { id, seq, state: handle, stopper: Arc::clone(&stopper) });
    }
    core.unlock_and_scale(state);
    Ok(Batch { handles })
}

/// Admits tasks from the front. The first refused task and all behind it stay.
pub(crate) fn admit_each<P: PoolTypes>(
    core: &Arc<PoolCore<P>>,
    tasks: &mut VecDeque<Submission<P>>,
) -> Result<(), Refusal> {
    while let Some((spec, first, _)) = tasks.front_mut() {
        // Made by user code, which must not run under the lock. A chunk therefore ends before the next wide task.
        let mut shards = further_shards(first, spec, *core.config.workers.end())?;
        let submitted = core.observed_now();
        let mut state = core.lock();
        let mut room = Ok(());
        for nth in 0..CHUNK {
            if tasks.front().is_none_or(|(spec, _, _)| spec.width != 1 && nth > 0) {
                break;
            }
            room = check_room(core, &state, 1);
            if room.is_err() {
                break;
            }
            if let Some((spec, task, completion)) = tasks.pop_front() {
                let notifier = Notifier { completion, handle: None };
                enter(&mut state, spec, task, std::mem::take(&mut shards), notifier, submitted);
            }
        }
        core.unlock_and_scale(state);
        drop_all(shards);
        room?;
    }
    Ok(())
}

/// The shards of a task besides the first. A task gets as many helpers as there can be.
fn further_shards<T: Task>(task: &T, spec: &mut Spec, max: usize) -> Result<Vec<T>, Refusal> {
    let width = spec.width;
    if width == 1 {
        return Ok(Vec::new());
    }
    if spec.helpers {
        let helpers = width.min(u32::try_from(max).unwrap_or(u32::MAX)).saturating_sub(1);
        let shards: Vec<T> = (0..helpers).map_while(|_| task.shard()).collect();
        *spec = spec.clone().helped_by(shards.len() as u32);
        return Ok(shards);
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

/// Checks whether so many more tasks can be admitted.
fn check_room<P: PoolTypes>(core: &PoolCore<P>, state: &PoolState<P>, tasks: usize) -> Result<(), Refusal> {
    if state.phase > Phase::Open {
        return Err(Refusal::PoolClosed);
    }
    let limit = core.config.queue;
    let open = state.admitted - state.ended - core.counters.ended_elsewhere() + tasks as u64;
    // The workers are asked for what they have not counted yet only if that decides.
    if open <= limit as u64 || open - state.uncounted() <= limit as u64 {
        Ok(())
    } else {
        Err(Refusal::QueueFull { limit })
    }
}

#[inline(always)]
fn enter<P: PoolTypes>(
    state: &mut PoolState<P>,
    spec: Spec,
    task: P::Task,
    shards: Vec<P::Task>,
    notifier: Notifier<P::Completion>,
    submitted: Option<Instant>,
) -> u64 {
    let seq = state.admitted;
    state.admitted += 1;
    let (shard, task) = (0, Some(task));
    // Most tasks are plain and take a path of their own. A value that two paths build in parts is moved once more
    // and read back before its parts have reached the cache.
    if spec.width == 1 && spec.group.is_none() {
        let owner = TaskOwner::Single(notifier);
        state.queue.push_plain(AdmittedTask { seq, spec, shard, submitted, task, owner });
        return seq;
    }
    let owner = match spec.width {
        1 => TaskOwner::Single(notifier),
        width => TaskOwner::Shard(Arc::new(Mutex::new(MultiWorkerTask::new(shards, width, notifier)))),
    };
    state.queue.push(AdmittedTask { seq, spec, shard, submitted, task, owner });
    seq
}
