//! How a message's body is written.

/// The `content_type` of a pack.
pub const BATCH: &str = "application/vnd.garenne.batch+json";

/// How the body is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentType {
    /// Plain JSON: the default, also for a missing or a foreign `content_type`.
    #[default]
    Json,
    /// A SenML pack (RFC 8428).
    SenmlJson,
    /// Several tasks of one kind; see [`read_batch`](super::read_batch). Never what a handler is given.
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
