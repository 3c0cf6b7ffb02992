//! Tasks as AMQP 0-9-1 messages, as any client can publish them, and the headers that Garenne adds.
//!
//! The body is the payload. Everything else is optional and read by [`Envelope::read`]. [`Copied`] alone
//! decides what a copy of a task (retry, quarantine, dead letter, replay) keeps and drops.

mod app_headers;
mod batch;
mod celery;
mod content_type;
mod copy;
mod directive;
pub mod encoded;
mod envelope;
mod foreign;
pub mod header;
mod header_value;
mod id;
mod incarnation;
mod kind;
mod new_task;
mod origin;
mod outcome;
#[cfg(feature = "sensor")]
mod reading;
mod source;
mod trace;
mod version;

pub use app_headers::{AppHeaders, HeaderError};
pub use batch::{BadBatch, BatchRecord, MOST_RECORDS, batch_properties, read_batch, write_batch};
pub use celery::{
    BadCall, BadZone, CELERY_REPLY_ENCODING, CeleryCall, CeleryZone, celery_failure, celery_success,
};
pub use content_type::{BATCH, ContentType};
pub use copy::{Copied, MAX_CHECKPOINT};
pub use directive::Directive;
pub use envelope::{Arrival, Envelope, Malformed, QuarantineRecord, UnhandledRecord, epoch_ms, span_ms};
pub use foreign::{FOREIGN_KIND, UNMAPPED_TASK_KIND, foreign_properties, is_foreign_copy};
pub use header_value::HeaderValue;
pub use id::{IdError, TaskId, new_uuid};
pub use incarnation::WorkerIncarnation;
pub use kind::{Kind, KindError, bindings_meet, matches_binding};
pub use new_task::NewTask;
pub use origin::Origin;
pub use outcome::DeadReason;
#[cfg(feature = "sensor")]
pub use reading::{READING_KIND, ReadingTasks, has_assumed_time, reading_body, reading_id, reading_task};
pub use source::Source;
pub use trace::TraceContext;
pub use version::{BadVersion, Version};
#[cfg(feature = "simulation")]
pub use {id::simulate_ids, uuid::Uuid};
