//! The queued tasks of a pool: first in, first started, except for groups that may start no more tasks and for
//! shards that join a started task. Helpers of started tasks come after everything else.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, vec_deque::Drain},
    sync::Arc,
};

use tokio::sync::Notify;

use super::task::{AdmittedTask, TaskOwner, extract};
use crate::{id::GroupName, panic::lock, pool_types::PoolTypes};

#[derive(Default)]
pub(crate) struct TaskQueue<P: PoolTypes> {
    ready: VecDeque<AdmittedTask<P>>,
    /// Shards of tasks whose first shard has started.
    shards: VecDeque<AdmittedTask<P>>,
    /// Shards and other tasks alternate, so that neither waits for all of the other kind.
    shard_next: bool,
    /// Helpers of tasks whose first shard runs.
    helpers: VecDeque<AdmittedTask<P>>,
    pub(crate) groups: HashMap<GroupName, GroupState<P>>,
    /// Groups with blocked tasks that may now start one, by the sequence number of their first blocked task.
    eligible: BTreeMap<u64, GroupName>,
    blocked: usize,
}

/// One group of tasks: its cap, its pause and the tasks that wait for them.
#[derive(Default)]
pub(crate) struct GroupState<P: PoolTypes> {
    pub(crate) cap: Option<usize>,
    pub(crate) paused: bool,
    /// Running tasks and shards.
    pub(crate) running: usize,
    /// Admitted tasks that have not ended.
    pub(crate) pending: usize,
    /// Tasks that were next but may not start because of the cap or the pause, oldest first.
    blocked: VecDeque<AdmittedTask<P>>,
    /// Notified when `pending` becomes 0.
    pub(crate) drained: Arc<Notify>,
}

impl<P: PoolTypes> GroupState<P> {
    fn may_start(&self) -> bool {
        !self.paused && self.cap.is_none_or(|cap| self.running < cap)
    }

    /// Whether tasks can start only after the group is resumed or its cap is raised.
    fn is_closed(&self) -> bool {
        self.paused || self.cap == Some(0)
    }
}

impl<P: PoolTypes> TaskQueue<P> {
    /// Adds a task that belongs to no group.
    #[inline(always)]
    pub(crate) fn push_plain(&mut self, task: AdmittedTask<P>) {
        self.ready.push_back(task);
    }

    pub(crate) fn push(&mut self, task: AdmittedTask<P>) {
        if let Some(group) = &task.spec.group {
            let state = self.groups.entry(group.clone()).or_default();
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
    pub(crate) fn put_back(&mut self, batch: impl DoubleEndedIterator<Item = AdmittedTask<P>>) {
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
    pub(crate) fn take_plain(&mut self, most: usize) -> Drain<'_, AdmittedTask<P>> {
        let most = if self.has_plain() { most } else { 0 };
        let plain = self.ready.iter().take(most).take_while(|task| task.is_plain()).count();
        self.ready.drain(..plain)
    }

    /// Whether [`take`](Self::take) probably returns a task.
    pub(crate) fn has_work(&self) -> bool {
        self.has_tasks() || self.next_helper().is_some()
    }

    /// Whether a task or a shard that is no helper can probably be started.
    pub(crate) fn has_tasks(&self) -> bool {
        self.has_unstarted() || !self.shards.is_empty()
    }

    /// Helpers are not counted: they wait for an idle worker, and nothing waits for them.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.shards.len() + self.blocked
    }

    /// Removes the next task to start. Its group counts it as running from here.
    pub(crate) fn take(&mut self) -> Option<AdmittedTask<P>> {
        // Most tasks are plain. This path moves them only once.
        if self.has_plain() {
            return self.ready.pop_front();
        }
        loop {
            let is_shard = !self.shards.is_empty() && (self.shard_next || !self.has_unstarted());
            let task = if is_shard { self.shards.pop_front() } else { self.pop_oldest() }?;
            if let Some(group) = &task.spec.group {
                let state = self.groups.entry(group.clone()).or_default();
                if !state.may_start() {
                    // Nearly always the end. It is not if younger tasks were blocked on admission.
                    let at = state.blocked.partition_point(|blocked| blocked.seq < task.seq);
                    state.blocked.insert(at, task);
                    self.blocked += 1;
                    continue;
                }
                state.running += 1;
                self.update_eligible(group);
            }
            self.started(&task, is_shard);
            return Some(task);
        }
    }

    /// The place of the first helper whose group lets it start.
    fn next_helper(&self) -> Option<usize> {
        let may_start = |group| self.groups.get(group).is_none_or(GroupState::may_start);
        self.helpers.iter().position(|helper| helper.spec.group.as_ref().is_none_or(may_start))
    }

    /// Removes the next helper to start, for a worker that has nothing else to do. Its group counts it as running
    /// from here.
    pub(crate) fn take_helper(&mut self) -> Option<AdmittedTask<P>> {
        let helper = self.helpers.remove(self.next_helper()?)?;
        if let Some(group) = &helper.spec.group {
            self.groups.entry(group.clone()).or_default().running += 1;
            self.update_eligible(group);
        }
        Some(helper)
    }

    /// Removes the helpers of a task that have not started.
    pub(crate) fn remove_helpers(&mut self, seq: u64) -> Vec<AdmittedTask<P>> {
        extract(&mut self.helpers, |helper| helper.seq == seq)
    }

    /// Whether a task waits that is not a shard of a started task.
    fn has_unstarted(&self) -> bool {
        !self.ready.is_empty() || !self.eligible.is_empty()
    }

    /// Removes the oldest task that is not a shard of a started task.
    fn pop_oldest(&mut self) -> Option<AdmittedTask<P>> {
        let first_ready = self.ready.front().map_or(u64::MAX, |task| task.seq);
        if let Some(first_blocked) = self.eligible.first_entry()
            && *first_blocked.key() < first_ready
        {
            let group = self.groups.get_mut(&first_blocked.remove())?;
            self.blocked -= 1;
            return group.blocked.pop_front();
        }
        self.ready.pop_front()
    }

    fn started(&mut self, task: &AdmittedTask<P>, is_shard: bool) {
        self.shard_next = !is_shard;
        if task.shard == 0
            && let TaskOwner::Shard(whole) = &task.owner
        {
            let &AdmittedTask { seq, submitted, .. } = task;
            let unstarted = std::mem::take(&mut lock(whole).unstarted);
            // The time that a helper waits for an idle worker is no waiting time of the task.
            let helpers = task.spec.helpers;
            let submitted = if helpers { None } else { submitted };
            let queue = if helpers { &mut self.helpers } else { &mut self.shards };
            for (shard, part) in (1..).zip(unstarted) {
                let (spec, owner) = (task.spec.clone(), TaskOwner::Shard(Arc::clone(whole)));
                queue.push_back(AdmittedTask { seq, spec, shard, submitted, task: Some(part), owner });
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

    pub(crate) fn configure(&mut self, group: &GroupName, change: impl FnOnce(&mut GroupState<P>)) {
        change(self.groups.entry(group.clone()).or_default());
        self.update_eligible(group);
        self.remove_unused(group);
    }

    /// Removes the group if it has neither tasks nor settings.
    fn remove_unused(&mut self, group: &GroupName) {
        if let Some(GroupState { cap: None, paused: false, running: 0, pending: 0, .. }) =
            self.groups.get(group)
        {
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

    /// Removes the tasks that match.
    pub(crate) fn extract(&mut self, matches: impl Fn(&AdmittedTask<P>) -> bool) -> Vec<AdmittedTask<P>> {
        let mut out = extract(&mut self.ready, &matches);
        out.append(&mut extract(&mut self.shards, &matches));
        out.append(&mut extract(&mut self.helpers, &matches));
        self.eligible.clear();
        let mut unblocked = Vec::new();
        for (name, state) in &mut self.groups {
            unblocked.append(&mut extract(&mut state.blocked, &matches));
            if let Some(first) = state.blocked.front()
                && state.may_start()
            {
                self.eligible.insert(first.seq, name.clone());
            }
        }
        self.blocked -= unblocked.len();
        // The order of the groups is random.
        unblocked.sort_by_key(|task| task.seq);
        out.append(&mut unblocked);
        out
    }

    /// Removes the tasks of groups that are paused or have a cap of 0.
    pub(crate) fn extract_closed(&mut self) -> Vec<AdmittedTask<P>> {
        let closed = self.groups.iter().filter(|(_, state)| state.is_closed());
        let closed: HashSet<GroupName> = closed.map(|(name, _)| name.clone()).collect();
        self.extract(|task| task.spec.group.as_ref().is_some_and(|group| closed.contains(group)))
    }

    /// How many tasks and shards of the group wait.
    pub(crate) fn waiting_in(&self, group: &GroupName) -> usize {
        let unblocked = self.ready.iter().chain(&self.shards);
        let unblocked = unblocked.filter(|task| task.spec.group.as_ref() == Some(group)).count();
        unblocked + self.groups.get(group).map_or(0, |state| state.blocked.len())
    }
}
