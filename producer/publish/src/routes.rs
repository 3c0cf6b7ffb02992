//! Task kinds and the lanes that receive them.

pub use garenne_protocol::task::READING_KIND;
use garenne_protocol::{
    quoted,
    task::{Kind, KindError, matches_binding},
};
use thiserror::Error;

/// The kinds that the lanes' bindings match.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The bindings of all lanes.
    pub bindings: Vec<String>,
    /// Whether the lane of readings has several shards. A reading's task then has its device as its key.
    pub readings_are_sharded: bool,
}

impl Routes {
    /// Routes by the bindings of all lanes. Readings have one shard.
    pub fn new(bindings: impl IntoIterator<Item = String>) -> Self {
        Self { bindings: bindings.into_iter().collect(), readings_are_sharded: false }
    }

    /// Parses a kind that the binding of some lane matches. Without a binding the broker would confirm the task into
    /// the queue of unroutable tasks, which no worker consumes.
    pub fn kind(&self, text: &str) -> Result<Kind, KindRefused> {
        let kind = Kind::parse(text)?;
        if self.bindings.iter().any(|binding| matches_binding(binding, text)) {
            Ok(kind)
        } else {
            Err(KindRefused::NoLane { kind: text.to_owned(), bindings: self.bindings.join(", ") })
        }
    }
}

/// Why no task of a kind is published.
#[derive(Debug, Error)]
pub enum KindRefused {
    /// The kind is invalid.
    #[error("{}", explained(.0))]
    Invalid(#[from] KindError),
    /// No lane takes it. Its tasks would stay in the queue of unroutable tasks.
    #[error("no lane takes kind {}; bindings are {bindings}", quoted(kind))]
    NoLane {
        /// The kind.
        kind: String,
        /// The bindings of all lanes.
        bindings: String,
    },
}

fn explained(error: &KindError) -> String {
    match error {
        KindError::Character(kind) => {
            format!("kind {} may hold only letters, digits, '.', '_' and '-'", quoted(kind))
        }
        other => other.to_string(),
    }
}
