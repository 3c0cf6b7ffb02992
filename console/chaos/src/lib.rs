//! The engine of Garenne's chaos runs: `garenne demo` and `garenne drill`.
//!
//! A run starts worker processes ([`WorkerFleet`]), injects faults ([`FaultInjector`], [`FaultProxy`]) as a
//! [`FaultSchedule`] says, and keeps an [`Account`](audit::Account) of every task: a task that was acknowledged to its sender must
//! take effect once. [`Engine`] is all of that in one value. Who publishes the tasks and what is shown is up to the
//! caller; [`Load`] publishes tasks at a constant rate.

pub mod audit;
pub mod die_with_parent;

mod engine;
mod fault;
mod fault_injector;
mod fault_proxy;
mod fault_schedule;
mod launcher;
mod load;
mod metrics;
mod process;
mod run_folder;
mod timeline;
mod worker_fleet;
mod worker_process;

pub use engine::Engine;
pub use fault::{Fault, Injected};
pub use fault_injector::{BROKER_RESTART_TIMEOUT, BrokerRestart, FaultInjector};
pub use fault_proxy::{FaultProxy, through};
pub use fault_schedule::{FaultSchedule, FaultStep};
pub use launcher::{Launcher, free_port};
pub use load::{Load, PublishProgress, Publishers};
pub use metrics::metric_sum;
pub use process::Process;
pub use run_folder::create_run_folder;
pub use timeline::{Timeline, TimelineEvent};
pub use worker_fleet::{WorkerCommand, WorkerFleet};
pub use worker_process::{WorkerExit, WorkerProcess};
