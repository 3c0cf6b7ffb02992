//! What a task is made of: its id and kind, its headers, and why it may be dead.

#[cfg(feature = "worker")]
pub use garenne_pool::Cause;
pub use garenne_protocol::task::{
    AppHeaders, Arrival, BadVersion, ContentType, DeadReason, Envelope, FOREIGN_KIND, HeaderError,
    HeaderValue, IdError, Kind, KindError, Malformed, NewTask, QuarantineRecord, Source, TaskId,
    TraceContext, UnhandledRecord, Version, WorkerIncarnation,
};
