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
//!
//! Settings are in [`config`], what a task is made of in [`task`], how a worker stops in [`shutdown`]. A program needs no
//! other crate of this project.
//!
//! # Features
//!
//! `client`, `worker` and `tls` are on by default. `default-features = false, features = ["client"]` is enough for a
//! program that publishes.
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `client` | yes | [`Client`]: publishing tasks |
//! | `worker` | yes | [`Worker`]: running tasks |
//! | `tls` | yes | brokers with TLS (`amqps://`) |
//! | `cli` | | `cli::run`: a command line, settings from flags, environment and a file, and logging |
//! | `admin` | | the admin port: metrics, readiness and commands over HTTP |
//! | `celery` | | lanes of calls of Celery's senders |
//! | `foreign` | | what handlers of foreign messages need: those of lanes with maps, which are no tasks |
//! | `otlp` | | the export of spans to an OpenTelemetry collector |

#[cfg(feature = "worker")]
mod attempt;
#[cfg(feature = "worker")]
mod batch;
pub mod broker;
#[cfg(feature = "worker")]
mod budget;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
mod client;
#[cfg(feature = "worker")]
pub mod config;
#[cfg(feature = "worker")]
mod consumer;
#[cfg(feature = "worker")]
mod dead_channel;
#[cfg(any(feature = "client", feature = "worker"))]
mod draft;
#[cfg(feature = "worker")]
mod execution;
pub mod exit;
#[cfg(feature = "worker")]
mod fleet;
#[cfg(feature = "worker")]
mod force_close;
#[cfg(feature = "worker")]
pub mod handler;
#[cfg(feature = "worker")]
mod in_flight;
#[cfg(feature = "worker")]
pub mod layer;
#[cfg(feature = "worker")]
mod panics;
pub mod payload;
#[cfg(feature = "worker")]
mod payload_memory;
#[cfg(feature = "worker")]
mod pipeline;
#[cfg(feature = "worker")]
mod redelivery;
#[cfg(feature = "worker")]
mod registry;
#[cfg(feature = "worker")]
mod reply_queues;
#[cfg(feature = "worker")]
mod settings;
#[cfg(feature = "worker")]
mod settlement;
#[cfg(feature = "worker")]
pub mod shutdown;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
#[cfg(feature = "worker")]
pub mod sink;
#[cfg(feature = "worker")]
mod spans;
#[cfg(feature = "worker")]
mod status;
pub mod task;
#[cfg(feature = "worker")]
mod task_publisher;
#[cfg(feature = "worker")]
pub mod testing;
#[cfg(feature = "worker")]
pub mod traces;
#[cfg(feature = "worker")]
mod unhandled_kinds;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "cli")]
pub use cli::WorkerArgs;
#[cfg(feature = "client")]
pub use client::{Client, ClientBuilder, Enqueue, EnqueueError, WaitError};
pub use garenne_common::exit::{Exit, Failure};
pub use garenne_protocol::task::{HeaderError, HeaderValue, TaskId};
pub use payload::Payload;
/// prometheus, for a crate that has no dependency of its own on it: [`WorkerHandle::registry`].
#[cfg(feature = "worker")]
pub use prometheus;
/// serde, for a crate that has no dependency of its own on it: `#[serde(crate = "garenne::serde")]`.
pub use serde;
#[cfg(feature = "worker")]
pub use {
    anyhow::Error,
    handler::{Data, Output, Result, RetryPolicy, TaskContext, TaskError, TaskOptions},
    registry::RegistryError,
    reply_queues::ReplyQueues,
    settings::{SinkName, WorkerConfig},
    task_publisher::TaskPublisher,
    tokio_util::sync::CancellationToken,
    worker::{Worker, WorkerBuilder, WorkerError, WorkerHandle},
};
