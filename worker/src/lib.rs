//! Garenne's worker, a library first: register handlers, give it a broker, run it.
//!
//! ```no_run
//! use garenne_worker::{TaskContext, TaskError, Worker, WorkerConfig, json_payload};
//!
//! #[derive(serde::Deserialize)]
//! struct Greet {
//!     name: String,
//! }
//! json_payload!(Greet, "demo.greet");
//!
//! async fn greet(_: TaskContext, payload: Greet) -> Result<String, TaskError> {
//!     Ok(format!("hello {}", payload.name))
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder(WorkerConfig::default()).handle(greet).build()?;
//! let receipt = worker.run_until(async { tokio::signal::ctrl_c().await.unwrap_or(()) }).await?;
//! assert!(receipt.balances());
//! # Ok(())
//! # }
//! ```

mod alarm;
mod batch;
mod budget;
pub mod builtin;
pub mod cli;
mod consumer;
mod execute;
mod execution;
mod fleet;
mod force_close;
pub mod handler;
mod panics;
mod pipeline;
mod redelivery;
mod registry;
mod settings;
mod settlement;
pub mod sink;
mod spans;
mod status;
mod supervise;
pub mod testing;
pub mod worker;

pub use alarm::{BadRules, Raised, Rules};
pub use handler::{Output, Payload, RetryPolicy, TaskContext, TaskError, TaskOptions};
pub use registry::RegistryError;
pub use settings::{SinkName, WorkerConfig};
pub use worker::{Worker, WorkerBuilder, WorkerError};
