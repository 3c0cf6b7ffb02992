//! Calls the observer of a pool and keeps its panics from the workers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{ending::EndingKind, observer::Observer, panic::catch, spec::Placement};

pub(crate) struct ObserverHook {
    observer: Option<Arc<dyn Observer>>,
    panics: AtomicU64,
}

impl ObserverHook {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self { observer, panics: AtomicU64::new(0) }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.observer.is_some()
    }

    pub(crate) fn started(&self, pool: &str, waited: Duration, placement: Placement) {
        self.call(pool, |observer| observer.started(waited, placement));
    }

    pub(crate) fn ended(&self, pool: &str, ran: Duration, ending: EndingKind) {
        self.call(pool, |observer| observer.ended(ran, ending));
    }

    fn call(&self, pool: &str, call: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = self.observer.as_deref()
            && let Err(panic) = catch(|| call(observer))
        {
            let panics = self.panics.fetch_add(1, Ordering::Relaxed) + 1;
            // It may panic for each task, a million times a second.
            if panics.is_power_of_two() {
                tracing::error!(pool, panic, panics, "observer panicked");
            }
        }
    }
}
