//! Settings of a source that this program does not have.

/// The settings of one source that this program does not have: those of other programs that share the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredSettings {
    /// `environment`, or `file` and its path.
    pub source: String,
    /// The names, sorted.
    pub names: Vec<String>,
}

impl IgnoredSettings {
    /// Logs one line.
    pub fn warn(&self) {
        let Self { source, names } = self;
        let settings = names.join(", ");
        tracing::warn!(source, settings, "ignoring settings that this program does not have");
    }
}
