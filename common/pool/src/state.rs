//! The data of a pool: queued tasks, workers and groups. Nothing here wakes, spawns or calls user code, except
//! that tasks and completions are moved through it.

pub(crate) mod admitted_task;
pub(crate) mod group_state;
pub(crate) mod idle_workers;
pub(crate) mod local_queue;
pub(crate) mod multi_worker_task;
pub(crate) mod notifier;
pub(crate) mod pool_state;
pub(crate) mod stop_limit;
pub(crate) mod task_queue;
pub(crate) mod worker_slot;
pub(crate) mod worker_table;
