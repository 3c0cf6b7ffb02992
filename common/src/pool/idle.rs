//! Workers without work.

use std::{collections::VecDeque, task::Waker};

use tokio::time::Instant;

/// The last to become idle is called first, so that few stay warm and the rest time out.
#[derive(Default)]
pub(super) struct IdleList {
    list: VecDeque<Idle>,
    /// By the worker's index. Nearly always answers that there is nothing to look for in the list,
    /// which is as long as there are idle workers.
    present: Vec<bool>,
}

struct Idle {
    index: usize,
    /// Absent for one of the minimum.
    since: Option<Instant>,
    waker: Waker,
}

impl IdleList {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn push(&mut self, index: usize, since: Option<Instant>, waker: Waker) {
        if self.present.len() <= index {
            self.present.resize(index + 1, false);
        }
        self.present[index] = true;
        self.list.push_back(Idle { index, since, waker });
    }

    pub(super) fn call_last(&mut self) -> Option<Waker> {
        let idle = self.list.pop_back()?;
        self.present[idle.index] = false;
        Some(idle.waker)
    }

    /// Since when the first has been idle, if that matters.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.list.front().and_then(|idle| idle.since)
    }

    pub(super) fn take_oldest(&mut self) -> Option<(usize, Waker)> {
        let idle = self.list.pop_front()?;
        self.present[idle.index] = false;
        Some((idle.index, idle.waker))
    }

    pub(super) fn take(&mut self, index: usize) -> Option<Waker> {
        if !std::mem::replace(self.present.get_mut(index)?, false) {
            return None;
        }
        let at = self.list.iter().position(|idle| idle.index == index)?;
        self.list.remove(at).map(|idle| idle.waker)
    }

    pub(super) fn take_all(&mut self) -> Vec<Waker> {
        self.present.fill(false);
        self.list.drain(..).map(|idle| idle.waker).collect()
    }
}
