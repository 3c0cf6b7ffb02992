//! Deliveries of long tasks while they run, so that a message that comes back while its task still
//! runs here takes the lost delivery's place instead of running beside it.
//!
//! It comes back when its channel died under it: a reconnect, or the broker's consumer timeout.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use garenne_common::task::TaskId;

use crate::consumer::Delivery;

/// The delivery of a running task; empty once it is settled.
pub(crate) type Loan = Arc<Mutex<Option<Delivery>>>;

/// Tasks that ended after their channel died; more than a prefetch of them need not be remembered.
const REMEMBERED: usize = 4096;

/// Every loan that may be renewed, and the tasks whose settlement was lost after they succeeded.
#[derive(Default)]
pub(crate) struct Loans {
    running: Mutex<HashMap<TaskId, Loan>>,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    ids: HashSet<TaskId>,
    order: VecDeque<TaskId>,
}

impl Loans {
    /// Registers a task that is about to be queued.
    pub(crate) fn lend(&self, id: &TaskId, delivery: Delivery) -> Loan {
        let loan = Arc::new(Mutex::new(Some(delivery)));
        self.running().insert(id.clone(), Arc::clone(&loan));
        loan
    }

    /// Gives the delivery back when the task ended.
    pub(crate) fn end(&self, id: &TaskId, loan: &Loan) -> Option<Delivery> {
        let mut running = self.running();
        if running.get(id).is_some_and(|known| Arc::ptr_eq(known, loan)) {
            running.remove(id);
        }
        drop(running);
        loan.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts a delivery that came back in the place of the lost one, if its task still runs here;
    /// answers the delivery where it does not.
    pub(crate) fn renew(&self, id: &TaskId, delivery: Delivery) -> Result<(), Delivery> {
        let Some(loan) = self.running().get(id).cloned() else { return Err(delivery) };
        let mut held = loan.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref().is_some_and(|old| !old.alive()) {
            *held = Some(delivery);
            return Ok(());
        }
        Err(delivery)
    }

    /// Notes a task that succeeded when its settlement could no longer reach the broker.
    pub(crate) fn note_done(&self, id: &TaskId) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.ids.insert(id.clone()) {
            done.order.push_back(id.clone());
            if done.order.len() > REMEMBERED
                && let Some(oldest) = done.order.pop_front()
            {
                done.ids.remove(&oldest);
            }
        }
    }

    /// Whether such a task is what came back.
    pub(crate) fn is_done(&self, id: &TaskId) -> bool {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(id)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Loan>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
