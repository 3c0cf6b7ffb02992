//! What `garenne dead replay` and `garenne dead drop` do.

/// What to do with the dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveAction {
    /// Publish a copy as a task, then remove the dead letter.
    Replay,
    /// Remove the dead letter.
    Drop,
}

impl MoveAction {
    /// The past participle for messages.
    pub fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Drop => "dropped",
        }
    }
}
