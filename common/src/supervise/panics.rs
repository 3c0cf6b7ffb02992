//! Counts the panics of this process's own tasks and threads.

use std::{collections::BTreeMap, sync::Mutex};

use crate::lock::lock;

/// One counter for the process, so that no task needs a handle to it.
static PANICS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a panic that was caught elsewhere.
pub fn count_panic(task: &'static str) {
    *lock(&PANICS).entry(task).or_default() += 1;
}

/// Number of panics of `task` in this process so far.
#[must_use]
pub fn panics_of(task: &'static str) -> u64 {
    panics().get(task).copied().unwrap_or_default()
}

/// The tasks that panicked in this process so far, and how often.
#[must_use]
pub fn panics() -> BTreeMap<&'static str, u64> {
    lock(&PANICS).clone()
}
