//! Handlers in other languages.
//!
//! A handler of the settings is a program. With the transport [`stdio`](Transport::Stdio) the worker keeps processes of it, which
//! ask for tasks; with [`exec`](Transport::Exec) it starts one for each task. With [`http`](Transport::Http) the handler is a
//! service, which gets a request for each task. `docs/reference/handlers.md` specifies what they
//! say to each other.
//!
//! ```text
//! task ─► Stdio::run ─► a child that asked ─► frame ─► the program
//!                                             frame ◄─ answer ─► output or error ─► settlement
//! ```
//!
//! Every process has a [guardian], so that nothing of it outlives its end or that of the worker.

mod answer;
pub mod check;
mod child;
mod exec;
pub mod frame;
pub mod guardian;
mod handler;
mod http;
mod logs;
mod memory;
mod metrics;
mod process;
mod register;
mod settings;
mod stdio;

pub use register::{Handlers, fit_lanes, register, validate};
pub use settings::{CommandLine, HandlerSettings, Transport};
