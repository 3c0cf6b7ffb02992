//! Task kinds and the lanes that receive them.

use garenne_protocol::task::{Kind, matches_binding};

use crate::refusal::Refusal;

/// The kind of a reading's task.
pub const READING: &str = "reading.process";

/// The kinds that the lanes' bindings match.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The bindings of all lanes.
    pub(crate) bindings: Vec<String>,
    /// Whether the lane of readings has several shards. A reading's task then has its device as its key.
    pub(crate) readings_are_sharded: bool,
}

impl Routes {
    /// Routes by the bindings of all lanes. Readings have one shard.
    pub fn new(bindings: impl IntoIterator<Item = String>) -> Self {
        Self { bindings: bindings.into_iter().collect(), readings_are_sharded: false }
    }

    /// Whether the lane of readings has several shards. A reading's task then needs its device as its key.
    pub fn readings_are_sharded(&self) -> bool {
        self.readings_are_sharded
    }

    /// Parses a kind that the binding of some lane matches. Without a binding the broker would confirm the task into
    /// the queue of unroutable tasks, which no worker consumes.
    ///
    /// # Errors
    /// The kind is invalid, or no lane takes it.
    pub fn kind(&self, text: &str) -> Result<Kind, Refusal> {
        let kind = Kind::parse(text)?;
        if self.bindings.iter().any(|binding| matches_binding(binding, text)) {
            Ok(kind)
        } else {
            Err(Refusal::no_lane(text, &self.bindings))
        }
    }
}
