//! The data of a pool: queued tasks, workers and groups. Nothing here wakes, spawns or calls user code, except
//! that tasks and completions are moved through it.

pub(crate) mod pool_state;
pub(crate) mod task;
pub(crate) mod task_queue;
pub(crate) mod worker_slot;
pub(crate) mod workers;
