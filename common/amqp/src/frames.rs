//! A filter between the broker and the AMQP client library.
//!
//! lapin parses a delivery before any code of ours runs. If its parser fails, it ends the connection; the
//! broker then requeues the message and delivers it to the next worker. RabbitMQ itself accepts such messages:
//! it does not check that short strings are UTF-8, bounds no nesting of header tables, and adds `x-death` to a
//! header frame that may already be as large as a frame can be.
//!
//! The filter splits the broker's bytes into frames, passes on unchanged every frame that lapin can parse, and
//! replaces the others with well-formed frames. A replaced content header carries a mark
//! ([`unreadable`]), so that a consumer can tell the message from an ordinary one. Bodies are never touched.
//!
//! The invariant: lapin never sees a content that it cannot parse. Broken framing (a missing end octet, an
//! unknown frame type) is passed on as it is, because no publisher can cause it and the connection is lost
//! anyway.

mod check;
mod filter;
mod mark;
mod method;
mod read;
mod repair;
mod runtime;
mod stream;

#[cfg(test)]
mod tests;

pub use filter::FrameFilter;
pub use mark::{UNREADABLE, take_unreadable, unreadable};

pub(super) use runtime::connect;

/// Table and array levels, the header table itself included, that are passed on. lapin's parser is recursive
/// and runs on a stack of 2 MiB: a debug build overflows it at 300 levels.
pub const MAX_DEPTH: usize = 32;
