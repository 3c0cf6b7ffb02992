//! RabbitMQ-backed task workers.
//!
//! A task is a message: its routing key is the *kind*, its body is JSON. The life of a task:
//!
//! 1. A publisher sends it to the exchange `garenne.tasks`, which routes it by kind to the queue of a *lane*.
//! 2. A worker that consumes the lane receives it. The worker holds at most the lane's prefetch of unacknowledged
//!    messages.
//! 3. The worker validates the message and puts it into the lane's pool. A pool worker runs the kind's handler.
//! 4. The worker settles the message by the handler's result. On success the sinks store the result and the message is
//!    acked. A failed attempt becomes a confirmed copy in a retry queue or a dead letter before the original is acked.
//! 5. A worker that stops returns what it has not started to the broker. If a worker crashes, the broker requeues its
//!    messages.
//!
//! [`Client`] publishes, [`Worker`] consumes; a handler is an async function from a [`TaskContext`] and a [`Payload`] to an output or a
//! [`TaskError`]. [`testing::TestWorker`] runs handlers without a broker.
//!
//! ```no_run
//! use garenne::{TaskContext, TaskError, Worker, WorkerConfig, json_payload};
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

mod batch;
mod budget;
pub mod cli;
mod client;
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
pub mod testing;
pub mod worker;

pub use cli::WorkerArgs;
pub use client::{Client, Enqueue, EnqueueError};
pub use garenne_common::exit::{Exit, Failure};
pub use handler::{Output, Payload, RetryPolicy, TaskContext, TaskError, TaskOptions};
pub use registry::RegistryError;
/// serde, for a crate that has no dependency of its own on it: `#[serde(crate = "garenne::serde")]`.
pub use serde;
pub use settings::{SinkName, WorkerConfig};
pub use worker::{Worker, WorkerBuilder, WorkerError};
