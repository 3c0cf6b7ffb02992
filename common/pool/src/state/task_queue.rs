//! The queued tasks of a pool: first in, first started, except for groups that may start no more tasks and for
//! shards that join a started task.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, vec_deque::Drain},
    sync::Arc,
};

use super::{
    admitted_task::{AdmittedTask, TaskOwner, extract},
    group_state::GroupState,
};
use crate::{completion::Completion, group_name::GroupName, task::Task};

pub(crate) struct TaskQueue<T: Task, C: Completion<T::Output>> {
    ready: VecDeque<AdmittedTask<T, C>>,
    /// Shards of tasks whose first shard has started.
    shards: VecDeque<AdmittedTask<T, C>>,
    /// Shards and other tasks alternate, so that neither waits for all of the other kind.
    shard_next: bool,
    groups: HashMap<GroupName, GroupState<T, C>>,
    /// Groups with blocked tasks that may now start one, by the sequence number of their first blocked task.
    eligible: BTreeMap<u64, GroupName>,
    /// Blocked tasks of all groups.
    blocked: usize,
}

impl<T: Task, C: Completion<T::Output>> TaskQueue<T, C> {
    pub(crate) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            shards: VecDeque::new(),
            shard_next: false,
            groups: HashMap::new(),
            eligible: BTreeMap::new(),
            blocked: 0,
        }
    }

    /// Adds a task that belongs to no group.
    #[inline(always)]
    pub(crate) fn push_plain(&mut self, task: AdmittedTask<T, C>) {
        self.ready.push_back(task);
    }

    pub(crate) fn push(&mut self, task: AdmittedTask<T, C>) {
        if let Some(group) = &task.group {
            let state = self.groups.entry(group.clone()).or_insert_with(GroupState::new);
            state.pending += 1;
            // A task that may not start must not wake a worker.
            if !state.may_start() {
                state.blocked.push_back(task);
                self.blocked += 1;
                return;
            }
        }
        self.ready.push_back(task);
    }

    /// Puts back tasks of a worker's batch. They are older than all ready tasks.
    pub(crate) fn put_back(&mut self, batch: impl DoubleEndedIterator<Item = AdmittedTask<T, C>>) {
        for task in batch.rev() {
            self.ready.push_front(task);
        }
    }

    /// Whether the next task can be started without regard to groups and shards.
    pub(crate) fn has_plain(&self) -> bool {
        self.shards.is_empty()
            && self.eligible.is_empty()
            && self.ready.front().is_some_and(AdmittedTask::is_plain)
    }

    /// Removes up to `most` tasks, up to the first that is not plain.
    pub(crate) fn take_plain(&mut self, most: usize) -> Drain<'_, AdmittedTask<T, C>> {
        let most = if self.has_plain() { most } else { 0 };
        let plain = self.ready.iter().take(most).take_while(|task| task.is_plain()).count();
        self.ready.drain(..plain)
    }

    /// Whether [`take`](Self::take) probably returns a task.
    pub(crate) fn has_work(&self) -> bool {
        self.has_unstarted() || !self.shards.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.shards.len() + self.blocked
    }

    /// Removes the next task to start. Its group counts it as running from here.
    pub(crate) fn take(&mut self) -> Option<AdmittedTask<T, C>> {
        // Most tasks are plain. This path moves them only once.
        if self.has_plain() {
            return self.ready.pop_front();
        }
        loop {
            let is_shard = !self.shards.is_empty() && (self.shard_next || !self.has_unstarted());
            let task = if is_shard { self.shards.pop_front() } else { self.pop_oldest() }?;
            let Some(group) = &task.group else {
                self.started(&task, is_shard);
                return Some(task);
            };
            let state = self.groups.entry(group.clone()).or_insert_with(GroupState::new);
            if state.may_start() {
                state.running += 1;
                self.update_eligible(group);
                self.started(&task, is_shard);
                return Some(task);
            }
            // The position is nearly always the end. It is not if younger tasks were blocked on admission.
            let at = state.blocked.partition_point(|blocked| blocked.seq < task.seq);
            state.blocked.insert(at, task);
            self.blocked += 1;
        }
    }

    /// Whether a task waits that is not a shard of a started task.
    fn has_unstarted(&self) -> bool {
        !self.ready.is_empty() || !self.eligible.is_empty()
    }

    /// Removes the oldest task that is not a shard of a started task.
    fn pop_oldest(&mut self) -> Option<AdmittedTask<T, C>> {
        let blocked = self.eligible.first_key_value().map(|(seq, _)| *seq);
        match (self.ready.front().map(|task| task.seq), blocked) {
            (Some(ready), Some(blocked)) if ready < blocked => self.ready.pop_front(),
            (_, Some(blocked)) => {
                let group = self.eligible.remove(&blocked)?;
                let task = self.groups.get_mut(&group)?.blocked.pop_front();
                self.blocked -= usize::from(task.is_some());
                task
            }
            _ => self.ready.pop_front(),
        }
    }

    fn started(&mut self, task: &AdmittedTask<T, C>, is_shard: bool) {
        self.shard_next = !is_shard;
        if task.shard == 0
            && let TaskOwner::Shard(whole) = &task.owner
        {
            for (shard, part) in (1..).zip(whole.take_unstarted()) {
                self.shards.push_back(AdmittedTask {
                    seq: task.seq,
                    id: task.id.clone(),
                    run: task.run,
                    placement: task.placement,
                    group: task.group.clone(),
                    shard,
                    width: task.width,
                    submitted: task.submitted,
                    task: Some(part),
                    owner: TaskOwner::Shard(Arc::clone(whole)),
                });
            }
        }
    }

    /// A task or shard of the group stopped running.
    pub(crate) fn release(&mut self, group: &GroupName) {
        if let Some(state) = self.groups.get_mut(group) {
            state.running -= 1;
            self.update_eligible(group);
        }
    }

    /// A task of the group ended and its completion was called.
    pub(crate) fn task_ended(&mut self, group: &GroupName) {
        if let Some(state) = self.groups.get_mut(group) {
            state.pending -= 1;
            if state.pending == 0 {
                state.drained.notify_waiters();
            }
            self.remove_unused(group);
        }
    }

    /// Changes the settings of a group.
    pub(crate) fn configure(&mut self, group: &GroupName, change: impl FnOnce(&mut GroupState<T, C>)) {
        change(self.groups.entry(group.clone()).or_insert_with(GroupState::new));
        self.update_eligible(group);
        self.remove_unused(group);
    }

    fn remove_unused(&mut self, group: &GroupName) {
        if self.groups.get(group).is_some_and(GroupState::is_unused) {
            self.groups.remove(group);
        }
    }

    /// Updates `eligible` after a change of the group. Invariant: the key of a group is the sequence number of
    /// its first blocked task, which only `pop_oldest`, `update_eligible` and `extract` change.
    fn update_eligible(&mut self, group: &GroupName) {
        let Some(state) = self.groups.get(group) else { return };
        let Some(first) = state.blocked.front() else { return };
        if state.may_start() {
            self.eligible.insert(first.seq, group.clone());
        } else {
            self.eligible.remove(&first.seq);
        }
    }

    pub(crate) fn group(&self, group: &GroupName) -> Option<&GroupState<T, C>> {
        self.groups.get(group)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (&GroupName, &GroupState<T, C>)> {
        self.groups.iter()
    }

    /// Removes the tasks that match.
    pub(crate) fn extract(
        &mut self,
        matches: impl Fn(&AdmittedTask<T, C>) -> bool,
    ) -> Vec<AdmittedTask<T, C>> {
        let mut out = extract(&mut self.ready, &matches);
        out.append(&mut extract(&mut self.shards, &matches));
        let mut changed = Vec::new();
        for (name, state) in &mut self.groups {
            let before = out.len();
            if let Some(first) = state.blocked.front().map(|task| task.seq) {
                out.append(&mut extract(&mut state.blocked, &matches));
                if out.len() > before {
                    self.blocked -= out.len() - before;
                    changed.push((name.clone(), first));
                }
            }
        }
        for (name, first) in changed {
            self.eligible.remove(&first);
            self.update_eligible(&name);
        }
        out
    }

    /// Removes the tasks of groups that are paused or have a cap of 0.
    pub(crate) fn extract_closed(&mut self) -> Vec<AdmittedTask<T, C>> {
        let closed = self.groups.iter().filter(|(_, state)| state.is_closed());
        let closed: HashSet<GroupName> = closed.map(|(name, _)| name.clone()).collect();
        if closed.is_empty() {
            return Vec::new();
        }
        self.extract(|task| task.group.as_ref().is_some_and(|group| closed.contains(group)))
    }

    /// How many tasks and shards of the group wait.
    pub(crate) fn waiting_in(&self, group: &GroupName) -> usize {
        let in_group = |task: &&AdmittedTask<T, C>| task.group.as_ref() == Some(group);
        self.ready.iter().filter(in_group).count()
            + self.shards.iter().filter(in_group).count()
            + self.groups.get(group).map_or(0, |state| state.blocked.len())
    }
}
