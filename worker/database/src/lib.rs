//! Garenne's Postgres database: connections, errors, and the tables with their versions.
//!
//! A fleet's tables begin with its prefix ([`Tables`]). Scripts lead from one version of them to the next
//! ([`schema`]); a program refuses tables of another version than its own. The table of readings has a partition for
//! each month ([`partitions`]). Hours and days of readings are kept as rollups ([`rollups`]), and values that are derived of readings follow
//! them ([`derived`]).

mod columns;
mod connector;
mod database;
mod definitions;
pub mod derived;
mod error;
mod migrations;
pub mod muting;
mod parameters;
pub mod partitions;
mod pool;
pub mod prune;
mod repair;
pub mod retention;
pub mod rollups;
pub mod schema;
mod tables;
pub mod units;

pub use database::Database;
pub use error::{DatabaseError, ErrorKind, QueryResult};
pub use parameters::{AnyColumn, Parameters, any_column, column, parameters};
pub use pool::{Connection, DEFAULT_CONNECTIONS, PostgresPool, finish};
pub use tables::Tables;
