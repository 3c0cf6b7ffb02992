//! Remembers the bodies of idempotency keys, so that a key with another body is refused, and when keys and the ids of records
//! were used first, so that a repeated reading without a time of its own gets the time that it had before.
//!
//! The memory is that of one process and bounded: a key that was used at another gateway, or long ago, is not compared.
//! The ids of its tasks are derived from the key all the same.

use std::{num::NonZeroUsize, sync::Mutex, time::Duration};

use garenne_common::lock::lock;
use garenne_protocol::{
    sensor::{Reading, Timestamp, Unit},
    task::{NewTask, TaskId, Version},
};
use lru::LruCache;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::refusal::Refusal;

/// Most keys that are remembered, and most ids. Beyond it, the one that was not used for longest is forgotten.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(16_384).expect("a constant");
/// How long a key or an id is remembered after its first use.
const WINDOW: Duration = Duration::from_secs(60 * 60);

/// The hash of a request's content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The hash of a decompressed body of tasks of this kind.
    pub(super) fn of(kind: &str, body: &[u8]) -> Self {
        // Kinds contain no line breaks.
        Self(Sha256::new().chain_update(kind).chain_update(b"\n").chain_update(body).finalize().into())
    }

    /// The hash of a reading, whatever its time is.
    fn of_reading(Reading { device, metric, value, unit, .. }: &Reading) -> Self {
        let unit = unit.map_or("", Unit::symbol);
        // Names contain no line breaks.
        Self::of(device, format!("{metric}\n{unit}\n{:x}", value.to_bits()).as_bytes())
    }
}

/// A key of a request, and what it is used for.
pub(super) struct UsedKey {
    /// The id that is derived from the sender and its key.
    pub(super) id: TaskId,
    pub(super) content: Fingerprint,
    /// The time of its request, which readings without a time of their own have.
    pub(super) now: Timestamp,
    /// The index of the CloudEvent whose source and id are the key; `None` for an `Idempotency-Key`.
    pub(super) event: Option<usize>,
}

/// What a key or an id was used for first, and when.
#[derive(Clone, Copy)]
pub(super) struct FirstUse {
    content: Fingerprint,
    /// The time of its request.
    pub(super) now: Timestamp,
    /// The version of its task.
    pub(super) version: Version,
    since: Instant,
}

/// The first uses of keys or ids.
struct Uses(Mutex<LruCache<TaskId, FirstUse>>);

impl Uses {
    fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_KEYS)))
    }

    /// Remembers a use. Returns the first one with the same content. One with another content counts as the first
    /// from then on if it `replaces`, and else there is none.
    fn first(&self, id: TaskId, content: Fingerprint, now: Timestamp, replaces: bool) -> Option<FirstUse> {
        let mut uses = lock(&self.0);
        match uses.get(&id).filter(|first| first.since.elapsed() < WINDOW) {
            Some(first) if first.content == content => return Some(*first),
            Some(_) if !replaces => return None,
            _ => {}
        }
        let first = FirstUse { content, now, version: Version::next(), since: Instant::now() };
        uses.put(id, first);
        Some(first)
    }
}

/// The keys of requests and the ids of records that were used.
pub(super) struct UsedKeys {
    keys: Uses,
    /// Only of records without a time, and of forwarded tasks without a version.
    records: Uses,
}

impl UsedKeys {
    pub(super) fn new() -> Self {
        Self { keys: Uses::new(), records: Uses::new() }
    }

    /// Remembers what a key is used for. Returns its first use. Refuses a key that was used with another body.
    pub(super) fn check(&self, UsedKey { id, content, now, event }: UsedKey) -> Result<FirstUse, Refusal> {
        self.keys.first(id, content, now, false).ok_or_else(|| Refusal::key_reused(event))
    }

    /// The time that a reading without a time of its own had when it first arrived under this id.
    pub(super) fn first_time(&self, id: TaskId, reading: &Reading) -> Timestamp {
        let first = self.records.first(id, Fingerprint::of_reading(reading), reading.time, true);
        first.map_or(reading.time, |first| first.now)
    }

    /// The version that a task had when it first arrived with this content under its id.
    pub(super) fn first_version(&self, task: &NewTask, now: Timestamp) -> Version {
        let NewTask { id, kind, body, version, .. } = task;
        let first = self.records.first(id.clone(), Fingerprint::of(kind.as_str(), body), now, true);
        first.map_or(*version, |first| first.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(used: &UsedKeys, n: usize, content: Fingerprint) -> Result<(), Refusal> {
        let now = Timestamp::UNIX_EPOCH;
        used.check(UsedKey { id: TaskId::parse(&n.to_string()).unwrap(), content, now, event: None })
            .map(drop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_with_another_body_is_refused_while_it_is_remembered() {
        let used = UsedKeys::new();
        let (first, other) = (Fingerprint::of("a", b"1"), Fingerprint::of("a", b"2"));
        check(&used, 1, first).unwrap();
        check(&used, 1, first).unwrap();
        check(&used, 2, other).unwrap();
        assert_eq!(check(&used, 1, other).unwrap_err().status, 422);
        assert!(check(&used, 1, Fingerprint::of("b", b"1")).is_err(), "the kind is part of the content");
        tokio::time::advance(WINDOW).await;
        check(&used, 1, other).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_keys_is_bounded() {
        let used = UsedKeys::new();
        let (first, other) = (Fingerprint::of("a", b"1"), Fingerprint::of("a", b"2"));
        (0..=MAX_KEYS.get()).for_each(|n| check(&used, n, first).unwrap());
        assert_eq!(used.keys.0.lock().unwrap().len(), MAX_KEYS.get());
        assert!(check(&used, MAX_KEYS.get(), other).is_err());
        check(&used, 0, other).unwrap();
    }
}
