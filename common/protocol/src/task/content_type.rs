//! The encoding of a message's body.

/// The media type of a batch.
pub const BATCH: &str = "application/vnd.garenne.batch+json";

/// The encoding of a message's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentType {
    /// Plain JSON. The default, also for a missing or unknown `content_type`.
    #[default]
    Json,
    /// A SenML pack (RFC 8428).
    SenmlJson,
    /// Several tasks of one kind; see [`read_batch`](super::read_batch). Handlers receive its records, never
    /// the batch.
    Batch,
}

impl ContentType {
    /// The media type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::SenmlJson => "application/senml+json",
            Self::Batch => BATCH,
        }
    }
}
