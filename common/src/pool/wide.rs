//! A task that asked for several workers: its shards end one by one, it ends once.

use std::sync::{Mutex, PoisonError};

use super::{Cause, Completion, Ending, Task, entry::Finish};

pub(super) struct Wide<T: Task, C: Completion<T::Output>> {
    state: Mutex<State<T, C>>,
}

struct State<T: Task, C: Completion<T::Output>> {
    /// Shards that have not ended, waiting ones included.
    remaining: u32,
    /// Shards 1.., until shard 0 starts.
    rest: Vec<T>,
    outputs: Vec<T::Output>,
    told: Option<Cause>,
    failure: Option<Ending<T::Output>>,
    finish: Option<Finish<C>>,
}

/// What the end of one shard means for the others.
pub(super) enum ShardEnd<O, C> {
    /// They go on.
    Continue,
    /// The first failure: nothing more of this task should start, and what runs is to stop.
    StopSiblings,
    /// It was the last one.
    Last { finish: Finish<C>, parts: Result<(Vec<O>, Option<Cause>), Ending<O>> },
}

impl<T: Task, C: Completion<T::Output>> Wide<T, C> {
    pub(super) fn new(rest: Vec<T>, width: u32, finish: Finish<C>) -> Self {
        let outputs = Vec::with_capacity(width as usize);
        let state =
            State { remaining: width, rest, outputs, told: None, failure: None, finish: Some(finish) };
        Self { state: Mutex::new(state) }
    }

    /// The shards that join the first one, once it has started.
    pub(super) fn take_rest(&self) -> Vec<T> {
        std::mem::take(&mut self.lock().rest)
    }

    /// The whole task ends without having started.
    pub(super) fn never_started(&self) -> Option<Finish<C>> {
        self.lock().finish.take()
    }

    /// One of its shards starts.
    pub(super) fn started(&self) {
        if let Some(Finish { handle: Some(handle), .. }) = &self.lock().finish {
            handle.start();
        }
    }

    pub(super) fn shard_ended(&self, ending: Ending<T::Output>) -> ShardEnd<T::Output, C> {
        let mut state = self.lock();
        state.remaining -= 1;
        let mut first_failure = false;
        match ending {
            Ending::Finished { output, told } => {
                state.outputs.push(output);
                state.told = state.told.or(told);
            }
            failure => {
                first_failure = state.failure.is_none();
                state.failure.get_or_insert(failure);
            }
        }
        if state.remaining == 0
            && let Some(finish) = state.finish.take()
        {
            let parts = match state.failure.take() {
                Some(failure) => Err(failure),
                None => Ok((std::mem::take(&mut state.outputs), state.told)),
            };
            return ShardEnd::Last { finish, parts };
        }
        if first_failure { ShardEnd::StopSiblings } else { ShardEnd::Continue }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<T, C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
