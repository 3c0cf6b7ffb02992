//! What waits: first in, first started, except for groups that may not start more and for shards that
//! join a wide task.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, vec_deque::Drain},
    sync::Arc,
};

use tokio::sync::Notify;

use super::{
    Completion, GroupName, Task,
    entry::{Entry, Owner, extract},
};

pub(super) struct Lane<T: Task, C: Completion<T::Output>> {
    ready: VecDeque<Entry<T, C>>,
    /// Shards of wide tasks that have started.
    joiners: VecDeque<Entry<T, C>>,
    /// Joiners and the rest take turns, so that neither a wide task nor small ones wait for all of
    /// the others.
    joiner_next: bool,
    groups: HashMap<GroupName, GroupState<T, C>>,
    /// Groups with parked tasks that may start one, by the sequence number of their first.
    eligible: BTreeMap<u64, GroupName>,
    parked: usize,
}

pub(super) struct GroupState<T: Task, C: Completion<T::Output>> {
    pub(super) cap: Option<usize>,
    pub(super) paused: bool,
    /// Tasks and shards that run.
    pub(super) running: usize,
    /// Tasks admitted and not ended.
    pub(super) pending: usize,
    /// Passed over because the group may not start more, oldest first.
    pub(super) parked: VecDeque<Entry<T, C>>,
    pub(super) drained: Arc<Notify>,
}

impl<T: Task, C: Completion<T::Output>> GroupState<T, C> {
    fn new() -> Self {
        Self {
            cap: None,
            paused: false,
            running: 0,
            pending: 0,
            parked: VecDeque::new(),
            drained: Arc::default(),
        }
    }

    fn may_start(&self) -> bool {
        !self.paused && self.cap.is_none_or(|cap| self.running < cap)
    }

    /// Whether only an order from outside can make it start anything.
    fn is_shut(&self) -> bool {
        self.paused || self.cap == Some(0)
    }

    fn forgettable(&self) -> bool {
        self.pending == 0 && self.running == 0 && self.cap.is_none() && !self.paused
    }
}

impl<T: Task, C: Completion<T::Output>> Lane<T, C> {
    pub(super) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            joiners: VecDeque::new(),
            joiner_next: false,
            groups: HashMap::new(),
            eligible: BTreeMap::new(),
            parked: 0,
        }
    }

    /// What belongs to no group.
    #[inline(always)]
    pub(super) fn push_plain(&mut self, entry: Entry<T, C>) {
        self.ready.push_back(entry);
    }

    pub(super) fn push(&mut self, entry: Entry<T, C>) {
        if let Some(group) = &entry.group {
            let state = self.groups.entry(group.clone()).or_insert_with(GroupState::new);
            state.pending += 1;
            // Parked at once, or every such task would wake a worker for nothing.
            if !state.may_start() {
                state.parked.push_back(entry);
                self.parked += 1;
                return;
            }
        }
        self.ready.push_back(entry);
    }

    /// Puts back what was taken in a batch and not started; it is older than all that is ready.
    pub(super) fn put_back(&mut self, batch: impl DoubleEndedIterator<Item = Entry<T, C>>) {
        for entry in batch.rev() {
            self.ready.push_front(entry);
        }
    }

    /// Whether the next task is one that any worker may run, with nothing else to be considered.
    pub(super) fn has_plain(&self) -> bool {
        self.joiners.is_empty() && self.eligible.is_empty() && self.ready.front().is_some_and(Entry::is_plain)
    }

    /// Takes what comes next, up to the first that is not such a one.
    pub(super) fn take_plain(&mut self, most: usize) -> Drain<'_, Entry<T, C>> {
        let most = if self.has_plain() { most } else { 0 };
        let plain = self.ready.iter().take(most).take_while(|entry| entry.is_plain()).count();
        self.ready.drain(..plain)
    }

    /// Whether a worker that looked would probably find something.
    pub(super) fn has_work(&self) -> bool {
        self.waits() || !self.joiners.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.joiners.len() + self.parked
    }

    /// The next task to start; its group has room for it and counts it as running from here.
    pub(super) fn take(&mut self) -> Option<Entry<T, C>> {
        // By far the most, on a path that moves them once.
        if self.has_plain() {
            return self.ready.pop_front();
        }
        loop {
            let joins = !self.joiners.is_empty() && (self.joiner_next || !self.waits());
            let entry = if joins { self.joiners.pop_front() } else { self.first() }?;
            let Some(group) = &entry.group else {
                self.started(&entry, joins);
                return Some(entry);
            };
            let state = self.groups.entry(group.clone()).or_insert_with(GroupState::new);
            if state.may_start() {
                state.running += 1;
                self.refresh(group);
                self.started(&entry, joins);
                return Some(entry);
            }
            // Nearly always at the end; not when younger ones were parked as soon as they came.
            let at = state.parked.partition_point(|parked| parked.seq < entry.seq);
            state.parked.insert(at, entry);
            self.parked += 1;
        }
    }

    fn waits(&self) -> bool {
        !self.ready.is_empty() || !self.eligible.is_empty()
    }

    /// The oldest that is no joiner.
    fn first(&mut self) -> Option<Entry<T, C>> {
        let parked = self.eligible.first_key_value().map(|(seq, _)| *seq);
        match (self.ready.front().map(|entry| entry.seq), parked) {
            (Some(ready), Some(parked)) if ready < parked => self.ready.pop_front(),
            (_, Some(parked)) => {
                let group = self.eligible.remove(&parked)?;
                let entry = self.groups.get_mut(&group)?.parked.pop_front();
                self.parked -= usize::from(entry.is_some());
                entry
            }
            _ => self.ready.pop_front(),
        }
    }

    fn started(&mut self, entry: &Entry<T, C>, joined: bool) {
        self.joiner_next = !joined;
        if entry.shard == 0
            && let Owner::Wide(wide) = &entry.owner
        {
            for (shard, task) in (1..).zip(wide.take_rest()) {
                self.joiners.push_back(Entry {
                    seq: entry.seq,
                    id: entry.id.clone(),
                    run: entry.run,
                    placement: entry.placement,
                    group: entry.group.clone(),
                    shard,
                    width: entry.width,
                    submitted: entry.submitted,
                    task: Some(task),
                    owner: Owner::Wide(Arc::clone(wide)),
                });
            }
        }
    }

    /// A task or shard of the group stopped running.
    pub(super) fn release(&mut self, group: &GroupName) {
        if let Some(state) = self.groups.get_mut(group) {
            state.running -= 1;
            self.refresh(group);
        }
    }

    /// A task of the group ended and its completion has been called.
    pub(super) fn ended(&mut self, group: &GroupName) {
        if let Some(state) = self.groups.get_mut(group) {
            state.pending -= 1;
            if state.pending == 0 {
                state.drained.notify_waiters();
            }
            self.forget(group);
        }
    }

    /// Changes the group's rule.
    pub(super) fn rule(&mut self, group: &GroupName, change: impl FnOnce(&mut GroupState<T, C>)) {
        change(self.groups.entry(group.clone()).or_insert_with(GroupState::new));
        self.refresh(group);
        self.forget(group);
    }

    fn forget(&mut self, group: &GroupName) {
        if self.groups.get(group).is_some_and(GroupState::forgettable) {
            self.groups.remove(group);
        }
    }

    /// Keeps `eligible` true to what the group may do. An entry's key is always that of the group's
    /// first parked task, which only `first`, `refresh` and `extract` change.
    fn refresh(&mut self, group: &GroupName) {
        let Some(state) = self.groups.get(group) else { return };
        let Some(first) = state.parked.front() else { return };
        if state.may_start() {
            self.eligible.insert(first.seq, group.clone());
        } else {
            self.eligible.remove(&first.seq);
        }
    }

    pub(super) fn group(&self, group: &GroupName) -> Option<&GroupState<T, C>> {
        self.groups.get(group)
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (&GroupName, &GroupState<T, C>)> {
        self.groups.iter()
    }

    /// Takes out what matches, wherever it waits.
    pub(super) fn extract(&mut self, matches: impl Fn(&Entry<T, C>) -> bool) -> Vec<Entry<T, C>> {
        let mut out = extract(&mut self.ready, &matches);
        out.append(&mut extract(&mut self.joiners, &matches));
        let mut touched = Vec::new();
        for (name, state) in &mut self.groups {
            let before = out.len();
            if let Some(first) = state.parked.front().map(|entry| entry.seq) {
                out.append(&mut extract(&mut state.parked, &matches));
                if out.len() > before {
                    self.parked -= out.len() - before;
                    touched.push((name.clone(), first));
                }
            }
        }
        for (name, first) in touched {
            self.eligible.remove(&first);
            self.refresh(&name);
        }
        out
    }

    /// Takes out what can only start after somebody resumes its group, or raises a cap of none.
    pub(super) fn extract_shut(&mut self) -> Vec<Entry<T, C>> {
        let shut = self.groups.iter().filter(|(_, state)| state.is_shut()).map(|(name, _)| name.clone());
        let shut: HashSet<GroupName> = shut.collect();
        if shut.is_empty() {
            return Vec::new();
        }
        self.extract(|entry| entry.group.as_ref().is_some_and(|group| shut.contains(group)))
    }

    /// How many of the group wait.
    pub(super) fn waiting_in(&self, group: &GroupName) -> usize {
        let in_group = |entry: &&Entry<T, C>| entry.group.as_ref() == Some(group);
        self.ready.iter().filter(in_group).count()
            + self.joiners.iter().filter(in_group).count()
            + self.groups.get(group).map_or(0, |state| state.parked.len())
    }
}
