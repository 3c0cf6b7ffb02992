//! Remembers the bodies of idempotency keys, so that a key with another body is refused.
//!
//! The memory is that of one process and bounded: a key that was used at another gateway, or long ago, is not compared.
//! The ids of its tasks are derived from the key all the same.

use std::{
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use garenne_protocol::task::TaskId;
use lru::LruCache;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::refusal::Refusal;

/// Most keys that are remembered. Beyond it, the one that was not used for longest is forgotten.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(16_384).expect("a constant");
/// How long a key is remembered after its first use.
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
}

/// A key of a request, and what it is used for.
pub(super) struct UsedKey {
    /// The id that is derived from the sender and its key.
    pub(super) id: TaskId,
    pub(super) content: Fingerprint,
    /// The index of the CloudEvent whose source and id are the key; `None` for an `Idempotency-Key`.
    pub(super) event: Option<usize>,
}

/// The keys that were used, each with the hash of its body.
pub(super) struct UsedKeys(Mutex<LruCache<TaskId, (Fingerprint, Instant)>>);

impl UsedKeys {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_KEYS)))
    }

    /// Remembers what a key is used for.
    ///
    /// # Errors
    /// The key was used with another body.
    pub(super) fn check(&self, key: UsedKey) -> Result<(), Refusal> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((first, since)) = used.get(&key.id)
            && since.elapsed() < WINDOW
        {
            return if *first == key.content { Ok(()) } else { Err(Refusal::key_reused(key.event)) };
        }
        used.put(key.id, (key.content, Instant::now()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(used: &UsedKeys, n: usize, content: Fingerprint) -> Result<(), Refusal> {
        used.check(UsedKey { id: TaskId::parse(&n.to_string()).unwrap(), content, event: None })
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
        assert_eq!(used.0.lock().unwrap().len(), MAX_KEYS.get());
        assert!(check(&used, MAX_KEYS.get(), other).is_err());
        check(&used, 0, other).unwrap();
    }
}
