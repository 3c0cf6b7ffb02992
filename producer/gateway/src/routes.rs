//! Task kinds and the lanes that receive them.

use garenne_protocol::task::{Kind, matches_binding};

use crate::refusal::Refusal;

/// The kind of a reading's task.
pub const READING: &str = "reading.process";

/// The kinds that the lanes' bindings match.
#[derive(Clone, Debug)]
pub struct Routes {
    bindings: Vec<String>,
    readings_are_sharded: bool,
}

impl Routes {
    /// Routes by the bindings of all lanes.
    pub fn new(bindings: impl IntoIterator<Item = String>) -> Self {
        Self { bindings: bindings.into_iter().collect(), readings_are_sharded: false }
    }

    /// Sets whether the lane of readings has several shards. A reading's task then has its device as its key.
    #[must_use]
    pub fn with_sharded_readings(self, readings_are_sharded: bool) -> Self {
        Self { readings_are_sharded, ..self }
    }

    /// Whether a reading's task needs a key.
    pub(crate) fn readings_are_sharded(&self) -> bool {
        self.readings_are_sharded
    }

    /// The bindings of all lanes.
    pub(crate) fn bindings(&self) -> &[String] {
        &self.bindings
    }

    /// Parses a kind that the binding of some lane matches. Without a binding the broker would confirm the task into
    /// the queue of unroutable tasks, which no worker consumes.
    ///
    /// # Errors
    /// [`Refusal::Kind`] or [`Refusal::NoLane`].
    pub fn kind(&self, text: &str) -> Result<Kind, Refusal> {
        let kind = Kind::parse(text)?;
        if self.bindings.iter().any(|binding| matches_binding(binding, text)) {
            Ok(kind)
        } else {
            Err(Refusal::NoLane { kind: text.to_owned(), bindings: self.bindings.join(", ") })
        }
    }
}
