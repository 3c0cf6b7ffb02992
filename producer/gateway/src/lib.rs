//! The sensor gateway: one port for HTTP, InfluxDB's write API, the TCP line protocol and TLS.
//!
//! A request passes these steps in order:
//!
//! ```text
//! accept → sniff → frame → authenticate → validate → group → publish → confirm → answer
//! ```
//!
//! An answer with task ids is sent only after the broker has confirmed that every record of the request is stored in a
//! queue. A sender that got no answer may send the request again: under the same ids it has no second effect.
//!
//! [`run`] is `garenne-producer serve`. The parts are public for benchmarks, fuzz tests and programs that publish
//! without a gateway.

mod accept;
mod audit;
mod auth;
pub mod broker;
mod connection;
mod connection_runtime;
mod context;
mod file_limit;
mod file_stamp;
mod http;
pub mod influx;
mod ingest;
mod instruments;
mod limits;
mod line_reader;
mod listen;
mod memory;
mod offload;
mod openapi;
mod payload;
mod problem;
mod publish_runtime;
mod reading_id;
mod refusal;
mod routes;
mod run;
mod server;
mod settings;
mod sniff;
mod source_limit;
mod status;
pub mod task_publisher;
mod tcp;
mod tls;
mod write_stall_guard;

pub use accept::Gateway;
pub use auth::Access;
pub use broker::BrokerSettings;
pub use connection::Connection;
pub use context::GatewayContext;
pub use file_limit::raise_file_limit;
pub use ingest::Ingest;
pub use instruments::Instruments;
pub use limits::Limits;
pub use memory::MemoryBudget;
pub use reading_id::reading_id;
pub use refusal::Refusal;
pub use routes::{READING, Routes};
pub use run::run;
pub use server::{Server, ServerKind, UnknownServer};
pub use settings::GatewaySettings;
pub use tls::{Tls, TlsFiles};

#[cfg(test)]
mod tests;
