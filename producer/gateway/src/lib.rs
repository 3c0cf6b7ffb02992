//! The sensor gateway: one port for HTTP, InfluxDB's write API, the TCP line protocol and TLS.
//!
//! A request passes these steps in order:
//!
//! ```text
//! accept → sniff → authenticate → parse → record → spool or send → answer
//! ```
//!
//! An answer with task ids is sent only after the broker has confirmed that every record of the request is stored in a
//! queue, or, if there is a spool, that its disk has them; such answers are marked. A sender that got no answer may send the request again: under the same ids it has no second effect.
//!
//! [`run`] is `garenne-producer serve`. The parts are public for benchmarks, fuzz tests and programs that publish
//! without a gateway.

mod accept;
mod audit;
mod auth;
mod certificate;
mod client_stream;
mod cloud_event;
mod connection;
mod context;
mod decompress;
mod dropped_lines;
mod expiry;
mod forward;
mod http;
mod idempotency;
pub mod influx;
mod ingest;
mod instruments;
mod left_out;
mod limits;
mod line_batch;
mod line_reader;
mod maps;
mod memory;
mod network;
mod offload;
mod openapi;
pub mod otlp;
mod payload;
mod problem;
mod proxy_protocol;
mod readings_format;
mod record_tasks;
mod refusal;
mod request;
mod run;
mod series_name;
mod server;
mod settings;
mod source_limit;
mod status;
mod task_devices;
mod task_properties;
mod tcp;
mod tls;

pub use accept::{raise_file_limit, serve};
pub use auth::Access;
pub use connection::Connection;
pub use context::GatewayContext;
pub use forward::ForwardSettings;
pub use ingest::Ingest;
pub use instruments::Instruments;
pub use limits::Limits;
pub use maps::Maps;
pub use memory::MemoryBudget;
pub use network::Network;
pub use refusal::Refusal;
pub use run::run;
pub use server::{Server, ServerKind};
pub use settings::GatewaySettings;
pub use tls::{Tls, TlsVersion, load_tls};

#[cfg(test)]
mod tests;
