//! The sensor gateway: one port for HTTP and the TCP line protocol, and a receipt that means safe.
//!
//! A connection travels accept → sniff → http or tcp → ingest → outlet, and its receipts travel
//! back. Which server runs it ([`server`]) is a setting and changes nothing else.

mod accept;
mod connection;
mod frame;
mod http;
mod ingest;
mod instruments;
mod limits;
mod openapi;
mod problem;
mod refusal;
pub mod run;
pub mod server;
mod sniff;
mod tcp;

pub use accept::{Gateway, Parts};
pub(crate) use ingest::READING;
pub use ingest::{Ingest, Routes};
pub use instruments::Instruments;
pub use limits::Limits;
pub use openapi::document as openapi_document;
pub use refusal::Refusal;
pub use server::ServerKind;

#[cfg(test)]
mod tests;
