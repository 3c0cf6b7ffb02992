//! Admission: what is taken in, what is refused, and that a refusal gives everything back.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

use super::{
    Batch, Completion, Handle, Phase, Refusal, Refused, Spec, Task,
    board::Board,
    entry::{Entry, Finish, Owner},
    handle::{Control, HandleState},
    shared::Shared,
    wide::Wide,
};

/// Most tasks admitted under one lock: others wait for it no longer than a few of them take to run.
const CHUNK: usize = 64;

impl<T: Task, C: Completion<T::Output>> Shared<T, C> {
    /// Answers the task's sequence number.
    pub(super) fn admit(
        self: &Arc<Self>,
        spec: Spec,
        task: T,
        completion: C,
        handle: Option<Arc<HandleState>>,
    ) -> Result<u64, Refused<(T, C)>> {
        let rest = match self.shards(spec.width, &task) {
            Ok(rest) => rest,
            Err(reason) => return Err(Refused { reason, task: (task, completion) }),
        };
        let submitted = self.options.observer.is_some().then(Instant::now);
        let mut board = self.lock();
        if let Err(reason) = self.room(&mut board, 1) {
            drop(board);
            return Err(Refused { reason, task: (task, completion) });
        }
        let seq = enter(&mut board, spec, task, rest, Finish { completion, handle }, submitted);
        let staffing = self.staff(&mut board);
        drop(board);
        self.apply(staffing);
        Ok(seq)
    }

    /// Admits all or none.
    #[expect(clippy::type_complexity, reason = "what came in goes out again")]
    pub(super) fn admit_together(
        self: &Arc<Self>,
        tasks: Vec<(Spec, T, C)>,
    ) -> Result<Batch, Refused<Vec<(Spec, T, C)>>> {
        let mut shards = Vec::with_capacity(tasks.len());
        for (spec, task, _) in &tasks {
            match self.shards(spec.width, task) {
                Ok(rest) => shards.push(rest),
                Err(reason) => return Err(Refused { reason, task: tasks }),
            }
        }
        let mut handles = Vec::with_capacity(tasks.len());
        let control: Arc<dyn Control> = Arc::clone(self) as Arc<dyn Control>;
        let submitted = self.options.observer.is_some().then(Instant::now);
        let mut board = self.lock();
        if let Err(reason) = self.room(&mut board, tasks.len()) {
            drop(board);
            return Err(Refused { reason, task: tasks });
        }
        for ((spec, task, completion), rest) in tasks.into_iter().zip(shards) {
            let state = Arc::new(HandleState::default());
            let id = spec.id.clone();
            let finish = Finish { completion, handle: Some(Arc::clone(&state)) };
            let seq = enter(&mut board, spec, task, rest, finish, submitted);
            handles.push(Handle { id, seq, state, control: Arc::clone(&control) });
        }
        // The first worker wakes the next while there is work.
        let staffing = self.staff(&mut board);
        drop(board);
        self.apply(staffing);
        Ok(Batch { handles })
    }

    /// Admits from the front; the first that is refused and all behind it stay.
    pub(super) fn admit_each(self: &Arc<Self>, tasks: &mut VecDeque<(Spec, T, C)>) -> Result<(), Refusal> {
        while let Some((first, _, _)) = tasks.front() {
            if first.width == 1 {
                self.admit_chunk(tasks)?;
            } else if let Some((spec, task, completion)) = tasks.pop_front()
                && let Err(refused) = self.admit(spec.clone(), task, completion, None)
            {
                let (task, completion) = refused.task;
                tasks.push_front((spec, task, completion));
                return Err(refused.reason);
            }
        }
        Ok(())
    }

    /// Up to the next wide task, whose shards its own code makes: not under the lock.
    fn admit_chunk(self: &Arc<Self>, tasks: &mut VecDeque<(Spec, T, C)>) -> Result<(), Refusal> {
        let submitted = self.options.observer.is_some().then(Instant::now);
        let mut board = self.lock();
        let mut room = Ok(());
        for _ in 0..CHUNK {
            if tasks.front().is_none_or(|(spec, _, _)| spec.width != 1) {
                break;
            }
            room = self.room(&mut board, 1);
            if room.is_err() {
                break;
            }
            if let Some((spec, task, completion)) = tasks.pop_front() {
                let finish = Finish { completion, handle: None };
                enter(&mut board, spec, task, Vec::new(), finish, submitted);
            }
        }
        // The first worker wakes the next while there is work.
        let staffing = self.staff(&mut board);
        drop(board);
        self.apply(staffing);
        room
    }

    /// The shards beyond the first.
    fn shards(&self, width: u32, task: &T) -> Result<Vec<T>, Refusal> {
        let max = *self.config.workers.end();
        if width == 1 {
            return Ok(Vec::new());
        }
        if width as usize > max {
            return Err(Refusal::TooManyWorkers { asked: width, max });
        }
        let rest: Vec<T> = (1..width).map_while(|_| task.shard()).collect();
        if rest.len() + 1 == width as usize { Ok(rest) } else { Err(Refusal::NotSharded { asked: width }) }
    }

    fn room(&self, board: &mut Board<T, C>, tasks: usize) -> Result<(), Refusal> {
        let limit = self.config.queue;
        if board.phase > Phase::Open {
            Err(Refusal::PoolClosed)
        } else if !board.has_room(tasks as u64, limit as u64, self.ended_elsewhere()) {
            Err(Refusal::QueueFull { limit })
        } else {
            Ok(())
        }
    }
}

#[inline(always)]
fn enter<T: Task, C: Completion<T::Output>>(
    board: &mut Board<T, C>,
    spec: Spec,
    task: T,
    rest: Vec<T>,
    finish: Finish<C>,
    submitted: Option<Instant>,
) -> u64 {
    let Spec { id, run, group, width, placement } = spec;
    let seq = board.admitted;
    board.admitted += 1;
    let (shard, task) = (0, Some(task));
    // By far the most, on a path of their own: what two paths build in pieces is moved once more, and read
    // back before its pieces have reached the cache.
    if width == 1 && group.is_none() {
        let owner = Owner::One(finish);
        board.lane.push_plain(Entry {
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
        1 => Owner::One(finish),
        _ => Owner::Wide(Arc::new(Wide::new(rest, width, finish))),
    };
    board.lane.push(Entry { seq, id, run, placement, group, shard, width, submitted, task, owner });
    seq
}
