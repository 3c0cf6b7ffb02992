//! A task in the pool: what the pool runs, and what owns the delivery meanwhile.

use std::sync::Arc;

use super::{LanePipeline, QuarantineRun, Ready, key_limits::KeyPlace};
use crate::{
    attempt::Attempt, execution::Execution, handler::Sharing, in_flight::InFlight, redelivery::PooledTask,
    registry::RegistryEntry,
};

/// A task in the pool.
pub(crate) struct Dispatched {
    pub(super) pipeline: Arc<LanePipeline>,
    pub(super) task: PooledTask,
    pub(super) entry: Arc<RegistryEntry>,
    pub(super) place: Option<KeyPlace>,
    /// Boxed, because nearly all tasks have none.
    pub(super) run: Option<Box<QuarantineRun>>,
}

impl LanePipeline {
    /// Prepares a task, or a batch, for the pool. The attempt gets clones of the envelope and the body.
    pub(super) fn prepare(
        self: &Arc<Self>,
        task: InFlight,
        entry: Arc<RegistryEntry>,
        place: Option<KeyPlace>,
        run: Option<Box<QuarantineRun>>,
    ) -> Ready {
        let InFlight { delivery, envelope, span, batch, .. } = &task;
        if let Some(batch) = batch {
            self.batches.add(batch);
        }
        self.member.grouped.track(envelope);
        let attempt = Attempt {
            entry: Arc::clone(&entry),
            envelope: Arc::clone(envelope),
            lane: self.pausing_lane(envelope),
            worker: Arc::clone(&self.worker),
            sharing: Sharing::Nothing,
            body: delivery.body.clone(),
            head: Arc::clone(&delivery.head),
            generation: delivery.generation(),
            span: span.clone(),
        };
        let batch = batch.clone();
        // A batch is a long task to the pool, so that a cancellation can take effect between two records.
        let deadline = if batch.is_some() { Some(self.batch_deadline) } else { attempt.deadline() };
        let attempt = if batch.is_none() { attempt.with_team() } else { attempt };
        let mut spec = attempt.spec(deadline);
        if let Some(place) = &place {
            spec = spec.group(place.group());
        }
        let task = match deadline {
            Some(_) if batch.is_none() => self.settler.redeliveries.track(task),
            _ => PooledTask::Owned(task),
        };
        let execution = Execution::new(attempt, batch);
        (spec, execution, Dispatched { pipeline: Arc::clone(self), task, entry, place, run })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use garenne_protocol::task::Envelope;

    use super::*;
    use crate::{
        consumer::{ChannelGeneration, Delivery},
        handler::TaskOptions,
        pipeline::quarantine::tests::{TestEnv, lane_env},
    };

    fn in_flight(env: &TestEnv, envelope: Envelope) -> InFlight {
        let task = env.test.task_of(Delivery::mock(&env.test.generation, 1, b"pump"));
        InFlight { envelope: Arc::new(envelope), ..task }
    }

    /// Only that group has the cap of the key.
    #[tokio::test]
    async fn a_task_with_a_key_enters_the_pool_in_the_group_of_its_key_also_if_it_has_a_group() {
        let env = lane_env().await;
        let options = TaskOptions::short()
            .half_of_lane_per_key(|body: &[u8]| Some(String::from_utf8_lossy(body).into_owned()));
        let group_of = |group: Option<&str>, has_key: bool| {
            let envelope =
                Envelope { group: group.map(str::to_owned), ..Envelope::clone(&env.test.envelope) };
            let task = in_flight(&env, envelope);
            let place = env.pipeline.key_limits.take(&task.delivery, &task.envelope, &options).unwrap();
            let place = place.filter(|_| has_key);
            let (spec, ..) = env.pipeline.prepare(task, Arc::clone(&env.test.entry), place, None);
            spec.group.map(|group| group.to_string())
        };
        assert_eq!(group_of(Some("import"), true).as_deref(), Some("garenne-key=pump"));
        assert_eq!(group_of(None, true).as_deref(), Some("garenne-key=pump"));
        assert_eq!(group_of(Some("import"), false).as_deref(), Some("import"));
    }

    #[tokio::test]
    async fn a_stop_of_a_group_finds_a_task_from_before_it_enters_the_pool_until_it_has_ended() {
        let env = lane_env().await;
        let found = || env.pipeline.member.grouped.tasks_of("import").len();
        let envelope = Envelope { group: Some("import".into()), ..Envelope::clone(&env.test.envelope) };
        let task = in_flight(&env, envelope);
        assert_eq!(found(), 0);
        let ready = env.pipeline.prepare(task, Arc::clone(&env.test.entry), None, None);
        assert_eq!(found(), 1);
        drop(ready);
        assert_eq!(found(), 0);
    }

    /// With a timeout it is a long task, although its kind is short. Short tasks are not tracked.
    #[tokio::test]
    async fn the_redelivery_of_a_task_with_a_timeout_of_its_publisher_does_not_run_beside_it() {
        for timeout in [Some(Duration::from_secs(60)), None] {
            let env = lane_env().await;
            assert_eq!(env.test.entry.options.deadline, None, "its kind is short");
            let envelope = || Envelope { timeout, ..Envelope::clone(&env.test.envelope) };
            let task = in_flight(&env, envelope());
            let _ready = env.pipeline.prepare(task, Arc::clone(&env.test.entry), None, None);
            env.test.generation.end();

            let generation = ChannelGeneration::mock();
            let mut delivery = Delivery::mock(&generation, 1, b"pump");
            delivery.head_mut().redelivered = true;
            let redelivered = InFlight { delivery, ..in_flight(&env, envelope()) };
            assert_eq!(env.pipeline.unless_done_or_running_here(redelivered).is_some(), timeout.is_none());
            assert_eq!(generation.outstanding(), u64::from(timeout.is_some()), "the task that runs owns it");
        }
    }
}
