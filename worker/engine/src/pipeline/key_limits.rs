//! Limits the share of a lane that the tasks of one key take, such as those of one device.
//!
//! A key has two limits in a worker. At most [`workers`](KeyLimits::workers) of its tasks run at once: they are a group
//! of the pool with a cap, so a task over the cap waits in the pool without a worker, and tasks of other keys pass it.
//! And at most half of the prefetch holds tasks of the key. Otherwise they could fill it, and the broker would deliver no
//! task of another key. Further tasks are deferred through a retry queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_common::config::Lane;
use garenne_protocol::task::{ContentType, header};

use super::LanePool;
use crate::{
    consumer::Delivery,
    handler::{KeyLimit, TaskOptions},
    panics::lock,
};

/// How long a task is deferred that the worker has no place for.
pub(super) const DEFERRAL: Duration = Duration::from_secs(1);

/// The limits of a lane, and the tasks of each key that the worker holds.
pub(crate) struct KeyLimits {
    pool: LanePool,
    /// The setting `max_per_key`.
    max_per_key: Option<u16>,
    /// Half of the lane's workers.
    half: usize,
    /// The most tasks of a key that wait or run.
    places: usize,
    held: Mutex<HashMap<Arc<str>, usize>>,
}

/// No place is free for the task's key.
#[derive(Debug)]
pub(super) struct NoPlace;

/// A place of a task among those of its key. Free again when dropped.
pub(super) struct KeyPlace {
    limits: Arc<KeyLimits>,
    group: Arc<str>,
}

impl KeyLimits {
    pub(crate) fn new(lane: &Lane, pool: LanePool) -> Arc<Self> {
        let half = (lane.concurrency.max / 2).max(1);
        let places = usize::from(lane.prefetch / 2).max(1);
        Arc::new(Self { pool, max_per_key: lane.max_per_key, half, places, held: Mutex::default() })
    }

    /// The most tasks of a key that run at once; [`None`] if the kind's tasks are not limited.
    fn workers(&self, limit: Option<&KeyLimit>) -> Option<usize> {
        let by_default = || limit.filter(|limit| limit.half_of_lane).map(|_| self.half);
        self.max_per_key.map(usize::from).or_else(by_default)
    }

    /// Takes a place for a task. [`None`] if it is not limited or has no key.
    pub(super) fn take(
        self: &Arc<Self>,
        delivery: &Delivery,
        content_type: ContentType,
        options: &TaskOptions,
    ) -> Result<Option<KeyPlace>, NoPlace> {
        let limit = options.key.as_ref();
        let Some(workers) = self.workers(limit) else { return Ok(None) };
        let of_body = || match content_type {
            // Its records have keys of their own.
            ContentType::Batch => None,
            _ => (limit?.key)(&delivery.body),
        };
        let headers = delivery.head.properties.headers().as_ref();
        let of_header = headers.and_then(|headers| header::text(headers.inner().get(header::KEY)?));
        let Some(key) = of_header.or_else(of_body) else { return Ok(None) };
        // The name of a group that a publisher has named must not be that of a key.
        let group: Arc<str> = format!("{}={key}", header::KEY).into();
        let mut held = lock(&self.held);
        match held.get_mut(&group) {
            Some(count) if *count >= self.places => return Err(NoPlace),
            Some(count) => *count += 1,
            None => {
                held.insert(Arc::clone(&group), 1);
                self.pool.group(&*group).cap(Some(workers));
            }
        }
        drop(held);
        Ok(Some(KeyPlace { limits: Arc::clone(self), group }))
    }
}

impl KeyPlace {
    /// The group of the pool that the task belongs to.
    pub(super) fn group(&self) -> &str {
        &self.group
    }
}

impl Drop for KeyPlace {
    fn drop(&mut self) {
        let mut held = lock(&self.limits.held);
        let Some(count) = held.get_mut(&self.group) else { return };
        *count -= 1;
        if *count == 0 {
            held.remove(&self.group);
            self.limits.pool.group(&*self.group).cap(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{consumer::Delivery, pipeline::quarantine::tests::env};

    fn key_of(body: &[u8]) -> Option<String> {
        String::from_utf8(body.to_vec()).ok().filter(|key| !key.is_empty())
    }

    #[tokio::test]
    async fn a_key_has_a_cap_while_it_has_tasks_and_at_most_half_of_the_prefetch() {
        let env = env().await;
        let pool = &env.pipeline.pool;
        let lane = Lane { prefetch: 6, ..Lane::default() };
        let limits = KeyLimits::new(&lane, pool.clone());
        let limited = TaskOptions::short().half_of_lane_per_key(key_of);
        let take = |limits: &Arc<KeyLimits>, options: &TaskOptions, body: &'static [u8]| {
            limits.take(&Delivery::mock(&env.test.generation, 1, body), ContentType::Json, options)
        };
        let caps = || -> Vec<_> {
            pool.snapshot().groups.iter().map(|group| (group.name.to_string(), group.cap)).collect()
        };
        let places: Vec<_> = (0..3).map(|_| take(&limits, &limited, b"pump").unwrap().unwrap()).collect();
        assert_eq!(places[0].group(), "garenne-key=pump");
        assert!(take(&limits, &limited, b"pump").is_err());
        // Half of four workers. Another key has places of its own, and a task without a key is not limited.
        let other = take(&limits, &limited, b"fan").unwrap();
        assert_eq!(
            caps(),
            [("garenne-key=fan".to_owned(), Some(2)), ("garenne-key=pump".to_owned(), Some(2))]
        );
        assert!(take(&limits, &limited, b"").unwrap().is_none());
        drop(other);
        drop(places);
        assert_eq!(caps(), []);

        // Other kinds are limited by the setting only.
        let unlimited = TaskOptions::short().keyed_by(key_of);
        assert!(take(&limits, &unlimited, b"pump").unwrap().is_none());
        let set = KeyLimits::new(&Lane { max_per_key: Some(3), ..lane }, pool.clone());
        let _place = take(&set, &unlimited, b"pump").unwrap().unwrap();
        assert_eq!(caps(), [("garenne-key=pump".to_owned(), Some(3))]);
    }
}
