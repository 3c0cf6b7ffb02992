//! Limits the share of a lane that the tasks of one key take, such as those of one device.
//!
//! A key has two limits in a worker. At most [`max_running`](KeyLimits::max_running) of its tasks run at once: they are a group
//! of the pool with a cap, so a task over the cap waits in the pool without a worker, and tasks of other keys pass it.
//! And at most half of the prefetch holds tasks of the key. Otherwise they could fill it, and the broker would deliver no
//! task of another key. Further tasks are deferred through a retry queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_common::config::Lane;
use garenne_protocol::task::{ContentType, Envelope, header};

use super::LanePool;
use crate::{
    consumer::Delivery,
    handler::{KeyLimit, MostPerKey, TaskOptions},
    panics::lock,
};

/// How long a task is deferred that the worker has no place for.
pub(super) const DEFERRAL: Duration = Duration::from_secs(1);

/// The limits of a lane, and the tasks of each key that the worker holds.
pub(crate) struct KeyLimits {
    pool: LanePool,
    max_per_key: Option<u16>,
    /// Half of the lane's workers.
    half: usize,
    /// The most tasks of a key that wait or run.
    places: usize,
    held: Mutex<Held>,
}

/// The tasks that have places.
#[derive(Default)]
struct Held {
    /// How many tasks of each key, by the name of its group in the pool.
    by_key: HashMap<Arc<str>, usize>,
    /// The group of a task, by its id. In the pool it is in the group of its key, which has the cap.
    groups: HashMap<Arc<str>, Arc<str>>,
}

/// No place is free for the task's key.
#[derive(Debug)]
pub(super) struct NoPlace;

/// A place of a task among those of its key. Free again when dropped.
pub(super) struct KeyPlace {
    limits: Arc<KeyLimits>,
    group: Arc<str>,
    /// The task's id, if it belongs to a group.
    grouped: Option<Arc<str>>,
}

impl KeyLimits {
    pub(crate) fn new(lane: &Lane, pool: LanePool) -> Arc<Self> {
        let half = (lane.concurrency.max / 2).max(1);
        let places = usize::from(lane.prefetch / 2).max(1);
        Arc::new(Self { pool, max_per_key: lane.max_per_key, half, places, held: Mutex::default() })
    }

    /// The most tasks of a key that run at once; [`None`] if the kind's tasks are not limited.
    fn max_running(&self, limit: Option<&KeyLimit>) -> Option<usize> {
        let of_lane = self.max_per_key.map(usize::from);
        match limit.map_or(MostPerKey::OfLane, |limit| limit.most) {
            MostPerKey::OfLane => of_lane,
            MostPerKey::HalfOfLane => of_lane.or(Some(self.half)),
            MostPerKey::Tasks(most) => of_lane.into_iter().chain([most.into()]).min(),
        }
    }

    /// The groups of the tasks that are in the pool under the group of their key, by the tasks' ids.
    pub(crate) fn groups(&self) -> HashMap<Arc<str>, Arc<str>> {
        lock(&self.held).groups.clone()
    }

    /// Takes a place for a task. [`None`] if it is not limited or has no key.
    pub(super) fn take(
        self: &Arc<Self>,
        delivery: &Delivery,
        task: &Envelope,
        options: &TaskOptions,
    ) -> Result<Option<KeyPlace>, NoPlace> {
        let limit = options.key.as_ref();
        let Some(max_running) = self.max_running(limit) else { return Ok(None) };
        let of_body = || match task.content_type {
            // Its records have keys of their own.
            ContentType::Batch => None,
            _ => (limit?.key)(&delivery.body),
        };
        let of_header =
            || header::get(delivery.head.properties.headers(), header::KEY).and_then(header::text);
        // The name of a group that a publisher has named must not be that of a key.
        let group = match limit.map(|limit| limit.most) {
            // Other kinds may have another limit for the same key.
            Some(MostPerKey::Tasks(_)) => of_body().map(|key| format!("{}={}/{key}", header::KEY, task.kind)),
            _ => of_header().or_else(of_body).map(|key| format!("{}={key}", header::KEY)),
        };
        let Some(group) = group else { return Ok(None) };
        let group: Arc<str> = group.into();
        let mut held = lock(&self.held);
        match held.by_key.get_mut(&group) {
            Some(count) if *count >= self.places => return Err(NoPlace),
            Some(count) => *count += 1,
            None => {
                held.by_key.insert(Arc::clone(&group), 1);
                self.pool.group(&*group).cap(Some(max_running));
            }
        }
        let grouped = task.group.as_deref().map(|of_task| {
            let id = task.id.shared();
            held.groups.insert(Arc::clone(&id), of_task.into());
            id
        });
        drop(held);
        Ok(Some(KeyPlace { limits: Arc::clone(self), group, grouped }))
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
        self.grouped.iter().for_each(|id| drop(held.groups.remove(id)));
        let Some(count) = held.by_key.get_mut(&self.group) else { return };
        *count -= 1;
        if *count == 0 {
            held.by_key.remove(&self.group);
            self.limits.pool.group(&*self.group).cap(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use garenne_protocol::amqp::{BasicProperties, FieldTable};

    use super::*;
    use crate::{consumer::Delivery, pipeline::quarantine::tests::env};

    fn key_of(body: &[u8]) -> Option<String> {
        String::from_utf8(body.to_vec()).ok().filter(|key| !key.is_empty())
    }

    fn task(id: &str, group: Option<&str>) -> Envelope {
        let task = crate::testing::finished(id, "{}").envelope;
        Envelope { group: group.map(str::to_owned), ..Envelope::clone(&task) }
    }

    #[derive(serde::Deserialize)]
    struct Email {
        domain: u32,
    }

    #[tokio::test]
    async fn a_limit_of_the_kind_counts_by_the_payload_alone_also_in_groups() {
        let env = env().await;
        let pool = &env.pipeline.pool;
        let lane = Lane { prefetch: 6, ..Lane::default() };
        let options = TaskOptions::short().limit_per_key(5, |email: &Email| email.domain);
        let mut delivery = Delivery::mock(&env.test.generation, 1, br#"{"domain":7,"to":"x"}"#);
        let mut headers = FieldTable::default();
        headers.insert(header::KEY.into(), header::long("set by its publisher"));
        delivery.set_properties(BasicProperties::default().with_headers(headers));
        let limits = KeyLimits::new(&lane, pool.clone());
        let of_group = limits.take(&delivery, &task("a", Some("import")), &options).unwrap().unwrap();
        let single = limits.take(&delivery, &task("b", None), &options).unwrap().unwrap();
        let key = "garenne-key=test.kind/7";
        assert_eq!((of_group.group(), single.group()), (key, key));
        assert_eq!(pool.snapshot().groups[0].cap, Some(5));
        let groups: Vec<_> = limits.groups().into_iter().collect();
        assert_eq!(groups, [("a".into(), "import".into())]);
        drop(of_group);
        assert!(limits.groups().is_empty());
        // The lane's setting applies if it is lower, and what is no such payload is not limited.
        let lower = KeyLimits::new(&Lane { max_per_key: Some(3), ..lane }, pool.clone());
        drop(single);
        let _place = lower.take(&delivery, &task("c", None), &options).unwrap();
        assert_eq!(pool.snapshot().groups[0].cap, Some(3));
        let other = Delivery::mock(&env.test.generation, 2, b"[]");
        assert!(limits.take(&other, &task("d", None), &options).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_key_has_a_cap_while_it_has_tasks_and_at_most_half_of_the_prefetch() {
        let env = env().await;
        let pool = &env.pipeline.pool;
        let lane = Lane { prefetch: 6, ..Lane::default() };
        let limits = KeyLimits::new(&lane, pool.clone());
        let limited = TaskOptions::short().half_of_lane_per_key(key_of);
        let take = |limits: &Arc<KeyLimits>, options: &TaskOptions, body: &'static [u8]| {
            limits.take(&Delivery::mock(&env.test.generation, 1, body), &task("t", None), options)
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

    #[tokio::test]
    async fn a_key_keeps_its_cap_while_one_of_its_tasks_runs() {
        let env = env().await;
        let limits = KeyLimits::new(&Lane { prefetch: 6, ..Lane::default() }, env.pipeline.pool.clone());
        let options = TaskOptions::short().half_of_lane_per_key(key_of);
        let take = || {
            let delivery = Delivery::mock(&env.test.generation, 1, b"pump");
            limits.take(&delivery, &task("t", None), &options)
        };
        let caps = || env.pipeline.pool.snapshot().groups.iter().map(|group| group.cap).collect::<Vec<_>>();
        let (first, second) = (take().unwrap(), take().unwrap());
        drop(first);
        assert_eq!(caps(), [Some(2)]);
        let others: Vec<_> = (0..2).map(|_| take().unwrap()).collect();
        assert!(take().is_err(), "the task that runs has one of three places");
        drop(second);
        assert_eq!(caps(), [Some(2)]);
        drop(others);
        assert_eq!(caps(), []);
    }
}
