//! How long the broker takes: when its oldest confirm is overdue, what comes now is refused at once
//! instead of waiting behind it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use garenne_amqp::PublishError;
use tokio::time::Instant;

/// The messages under way, by when they were sent.
pub(super) struct Pressure {
    limit: Duration,
    under_way: Mutex<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    sent: BTreeMap<u64, Instant>,
    next: u64,
}

/// A message under way, until this is dropped.
pub(super) struct Sent<'a> {
    pressure: &'a Pressure,
    number: u64,
}

impl Pressure {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, under_way: Mutex::default() }
    }

    pub(super) fn send(&self) -> Sent<'_> {
        let mut under_way = self.under_way();
        let number = under_way.next;
        under_way.next += 1;
        under_way.sent.insert(number, Instant::now());
        Sent { pressure: self, number }
    }

    /// # Errors
    /// [`PublishError::Busy`] while the oldest message under way is older than the limit.
    pub(super) fn check(&self) -> Result<(), PublishError> {
        let oldest = self.under_way().sent.first_entry().map(|sent| *sent.get());
        match oldest {
            Some(oldest) if oldest.elapsed() > self.limit => {
                Err(PublishError::Busy { what: "confirm of an earlier message", waited: self.limit })
            }
            _ => Ok(()),
        }
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.pressure.under_way().sent.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_overdue_confirm_refuses_what_comes_until_it_has_come() {
        let pressure = Pressure::new(Duration::from_secs(2));
        let (first, second) = (pressure.send(), pressure.send());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _third = pressure.send();
        assert!(pressure.check().is_ok());
        tokio::time::sleep(Duration::from_millis(1001)).await;
        let refused = pressure.check().unwrap_err();
        assert_eq!(refused.to_string(), "publisher is busy: no confirm of an earlier message within 2s");
        drop(first);
        assert!(pressure.check().is_err(), "the second is as old");
        drop(second);
        assert!(pressure.check().is_ok());
    }
}
