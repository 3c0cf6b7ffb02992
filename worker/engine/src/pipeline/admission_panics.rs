//! Counts panics of the worker's own code over a message. Without a limit, the message would be redelivered forever.

use std::{collections::BTreeMap, sync::Mutex};

use crate::panics::lock;

/// Panics over the redeliveries of a message after which this worker does not admit it again.
pub(super) const MAX_PANICS: u32 = 4;
/// Bound for messages with counted panics. It is above every prefetch, so that no message that is held here is
/// forgotten because of others.
const MAX_MESSAGES: usize = 1 << 16;

/// The number of panics and the last panic's text, by [`Delivery::fingerprint`](crate::consumer::Delivery::fingerprint).
#[derive(Default)]
pub(crate) struct AdmissionPanics(Mutex<BTreeMap<u64, (u32, String)>>);

impl AdmissionPanics {
    /// Counts a panic during the admission of a redelivered message.
    pub(super) fn record(&self, fingerprint: u64, panic: &str) {
        let mut panics = lock(&self.0);
        if panics.len() >= MAX_MESSAGES && !panics.contains_key(&fingerprint) {
            panics.clear();
        }
        let (count, last) = panics.entry(fingerprint).or_default();
        *count += 1;
        panic.clone_into(last);
    }

    /// Resets the count of a message that was admitted.
    pub(super) fn forget(&self, fingerprint: u64) {
        lock(&self.0).remove(&fingerprint);
    }

    /// The last panic over a message, if there were [`MAX_PANICS`]. The count is reset then.
    pub(super) fn take_if_too_many(&self, fingerprint: u64) -> Option<String> {
        let mut panics = lock(&self.0);
        panics.get(&fingerprint).filter(|(count, _)| *count >= MAX_PANICS)?;
        panics.remove(&fingerprint).map(|(_, last)| last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_over_a_message_are_counted_until_there_are_too_many_or_it_is_admitted() {
        let panics = AdmissionPanics::default();
        for count in 0..MAX_PANICS {
            assert_eq!(panics.take_if_too_many(7), None, "{count} panics");
            panics.record(7, &format!("panic {count}"));
        }
        assert_eq!(panics.take_if_too_many(8), None, "another message");
        assert_eq!(panics.take_if_too_many(7), Some(format!("panic {}", MAX_PANICS - 1)));
        assert_eq!(panics.take_if_too_many(7), None, "the count is reset");
        (1..MAX_PANICS).for_each(|_| panics.record(7, "panic"));
        panics.forget(7);
        panics.record(7, "panic");
        assert_eq!(panics.take_if_too_many(7), None, "it was admitted in between");
    }

    #[test]
    fn the_number_of_messages_with_counted_panics_is_bounded() {
        let panics = AdmissionPanics::default();
        (0..MAX_MESSAGES as u64).for_each(|message| panics.record(message, ""));
        (1..MAX_PANICS).for_each(|_| panics.record(7, "known"));
        assert_eq!(panics.take_if_too_many(7), Some("known".to_owned()));
        panics.record(7, "");
        assert_eq!(lock(&panics.0).len(), MAX_MESSAGES);
        panics.record(u64::MAX, "");
        assert_eq!(lock(&panics.0).len(), 1);
    }
}
