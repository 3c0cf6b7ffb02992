//! A task as layers and handlers receive it.

use bytes::Bytes;

use super::{ContentType, TaskContext};

/// A task on its way to its handler.
#[derive(Clone)]
#[non_exhaustive]
pub struct Task {
    /// The task's context.
    pub context: TaskContext,
    /// The encoding of the body.
    pub content_type: ContentType,
    /// The body of the message, or of the record of a batch. The handler reads its payload from it.
    pub body: Bytes,
}

impl Task {
    pub(crate) fn new(context: TaskContext, content_type: ContentType, body: Bytes) -> Self {
        Self { context, content_type, body }
    }
}
