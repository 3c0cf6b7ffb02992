//! What a simulation replaces: the clock and the random source of its thread. Compiled only with the undocumented
//! feature `simulation`.

use std::{
    cell::RefCell,
    marker::PhantomData,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use garenne_protocol::task::{Uuid, simulate_ids};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// The time of day at which each simulation begins: 2026-01-01.
const BEGINNING: Duration = Duration::from_secs(1_767_225_600);

thread_local! {
    static CURRENT: RefCell<Option<World>> = const { RefCell::new(None) };
}

struct World {
    random: StdRng,
    began: Instant,
}

/// A simulation of this thread. Until it is dropped, the clock is that of tokio, which should be paused, and random
/// numbers and ids follow from the seed.
#[must_use = "the simulation ends when this is dropped"]
pub struct Simulation(PhantomData<*const ()>);

impl Simulation {
    /// Begins a simulation. Call it inside the runtime whose clock it shall use.
    pub fn begin(seed: u64) -> Self {
        let world = World { random: StdRng::seed_from_u64(seed), began: Instant::now() };
        CURRENT.set(Some(world));
        simulate_ids(Some(id));
        Self(PhantomData)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        simulate_ids(None);
        CURRENT.set(None);
    }
}

/// Whether this thread runs a simulation.
pub fn is_running() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

pub(crate) fn now() -> Option<SystemTime> {
    CURRENT.with_borrow(|world| Some(UNIX_EPOCH + BEGINNING + world.as_ref()?.began.elapsed()))
}

pub(crate) fn bits() -> Option<u64> {
    CURRENT.with_borrow_mut(|world| Some(world.as_mut()?.random.next_u64()))
}

/// The next id: a UUID of the simulated time.
fn id() -> Uuid {
    CURRENT.with_borrow_mut(|world| {
        let World { random, began } = world.as_mut().expect("ids are simulated as long as the rest");
        let mut bytes = [0; 10];
        random.fill_bytes(&mut bytes);
        let millis = u64::try_from((BEGINNING + began.elapsed()).as_millis()).unwrap_or(u64::MAX);
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    })
}

#[cfg(test)]
mod tests {
    use garenne_protocol::task::TaskId;

    use super::*;
    use crate::{clock, random};

    async fn observed(seed: u64) -> (u64, SystemTime, TaskId) {
        let _simulation = Simulation::begin(seed);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        (random::bits(), clock::now(), TaskId::random())
    }

    #[tokio::test(start_paused = true)]
    async fn time_random_numbers_and_ids_follow_from_the_seed() {
        let first = observed(7).await;
        assert_eq!(first.1, UNIX_EPOCH + BEGINNING + Duration::from_millis(1500));
        assert_eq!(observed(7).await, first);
        let other = observed(8).await;
        assert!(other.0 != first.0 && other.2 != first.2);
        assert_ne!(random::bits(), first.0, "the simulation has ended");
        assert_ne!(TaskId::random(), TaskId::random());
    }
}
