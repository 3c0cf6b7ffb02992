//! One group of tasks: its cap, its pause and the tasks that wait for them.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::Notify;

use super::admitted_task::AdmittedTask;
use crate::{completion::Completion, task::Task};

pub(crate) struct GroupState<T: Task, C: Completion<T::Output>> {
    pub(crate) cap: Option<usize>,
    pub(crate) paused: bool,
    /// Running tasks and shards.
    pub(crate) running: usize,
    /// Admitted tasks that have not ended.
    pub(crate) pending: usize,
    /// Tasks that were next but may not start because of the cap or the pause, oldest first.
    pub(crate) blocked: VecDeque<AdmittedTask<T, C>>,
    /// Notified when `pending` becomes 0.
    pub(crate) drained: Arc<Notify>,
}

impl<T: Task, C: Completion<T::Output>> GroupState<T, C> {
    pub(crate) fn new() -> Self {
        Self {
            cap: None,
            paused: false,
            running: 0,
            pending: 0,
            blocked: VecDeque::new(),
            drained: Arc::default(),
        }
    }

    pub(crate) fn may_start(&self) -> bool {
        !self.paused && self.cap.is_none_or(|cap| self.running < cap)
    }

    /// Whether tasks can start only after the group is resumed or its cap is raised.
    pub(crate) fn is_closed(&self) -> bool {
        self.paused || self.cap == Some(0)
    }

    /// Whether the group has neither tasks nor settings, so that its state can be removed.
    pub(crate) fn is_unused(&self) -> bool {
        self.pending == 0 && self.running == 0 && self.cap.is_none() && !self.paused
    }
}
