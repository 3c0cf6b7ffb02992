//! `/v1/readings`, `/v1/devices` and `/v1/lanes/history`: what workers have stored in Postgres, for people and programs.
//!
//! Reading needs no login, like the rest of the dashboard. Every answer is bounded: in rows, in readings that the server
//! looks at for it, and in time. A request beyond a limit is refused with the limit before its rows are read.

mod devices;
mod format;
mod lane_history;
mod query;
mod readings;
mod step;
mod stream;

pub(super) use devices::devices;
pub(super) use lane_history::lane_history;
pub(super) use readings::readings;
