//! A task that runs on several workers: its shards end one by one, the task ends once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::notifier::Notifier;
use crate::{cause::Cause, completion::Completion, ending::Ending, task::Task};

pub(crate) struct MultiWorkerTask<T: Task, C: Completion<T::Output>> {
    state: Mutex<State<T, C>>,
}

struct State<T: Task, C: Completion<T::Output>> {
    /// Shards that have not ended, including queued ones.
    remaining: u32,
    /// All shards but the first, until the first one starts.
    unstarted: Vec<T>,
    outputs: Vec<T::Output>,
    cancelled: Option<Cause>,
    failure: Option<Ending<T::Output>>,
    notifier: Option<Notifier<C>>,
}

/// What follows from the end of one shard.
pub(crate) enum ShardEnd<O, C> {
    /// Nothing: the other shards continue.
    Continue,
    /// The shard was the first to fail: cancel the others and start no more of them.
    StopSiblings,
    /// The shard was the last one: the task ends.
    Last(TaskEnd<O, C>),
}

/// The parts of the ending of a task whose shards have all ended.
pub(crate) struct TaskEnd<O, C> {
    pub(crate) notifier: Notifier<C>,
    /// The outputs of the shards that finished, in the order in which they ended.
    pub(crate) outputs: Vec<O>,
    pub(crate) cancelled: Option<Cause>,
    /// The first failure.
    pub(crate) failure: Option<Ending<O>>,
}

impl<T: Task, C: Completion<T::Output>> MultiWorkerTask<T, C> {
    /// `unstarted` are all shards but the first.
    pub(crate) fn new(unstarted: Vec<T>, width: u32, notifier: Notifier<C>) -> Self {
        let state = State {
            remaining: width,
            unstarted,
            outputs: Vec::with_capacity(width as usize),
            cancelled: None,
            failure: None,
            notifier: Some(notifier),
        };
        Self { state: Mutex::new(state) }
    }

    /// The shards that join the first one when it has started.
    pub(crate) fn take_unstarted(&self) -> Vec<T> {
        std::mem::take(&mut self.lock().unstarted)
    }

    /// Ends the task before its first shard has started.
    pub(crate) fn take_notifier(&self) -> Option<Notifier<C>> {
        self.lock().notifier.take()
    }

    /// One of the shards starts.
    pub(crate) fn shard_started(&self) {
        if let Some(Notifier { handle: Some(handle), .. }) = &self.lock().notifier {
            handle.start();
        }
    }

    pub(crate) fn shard_ended(&self, ending: Ending<T::Output>) -> ShardEnd<T::Output, C> {
        let mut state = self.lock();
        state.remaining -= 1;
        let mut first_failure = false;
        match ending {
            Ending::Finished { output, told } => {
                state.outputs.push(output);
                state.cancelled = state.cancelled.or(told);
            }
            failure => {
                first_failure = state.failure.is_none();
                state.failure.get_or_insert(failure);
            }
        }
        if state.remaining == 0
            && let Some(notifier) = state.notifier.take()
        {
            let outputs = std::mem::take(&mut state.outputs);
            let (cancelled, failure) = (state.cancelled, state.failure.take());
            return ShardEnd::Last(TaskEnd { notifier, outputs, cancelled, failure });
        }
        if first_failure { ShardEnd::StopSiblings } else { ShardEnd::Continue }
    }

    fn lock(&self) -> MutexGuard<'_, State<T, C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
