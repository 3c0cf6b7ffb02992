//! One life of a worker, by name: the worker's id and the incarnation that it drew at its start.

use std::fmt;

use uuid::Uuid;

/// A worker's id and its incarnation, written `<worker>/<incarnation>` in headers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerIncarnation {
    worker: String,
    incarnation: String,
}

impl WorkerIncarnation {
    /// The longest worker id that is read, in bytes.
    pub const MAX_WORKER: usize = 128;

    /// Joins the two. What was read from elsewhere goes through [`parse`](Self::parse).
    pub fn new(worker: impl Into<String>, incarnation: impl Into<String>) -> Self {
        Self { worker: worker.into(), incarnation: incarnation.into() }
    }

    /// Reads `<worker>/<incarnation>`: an id of 1 to 128 printable ASCII characters without spaces, and a
    /// UUID in its hyphenated form. An id that follows from a host name may have more than letters.
    pub fn parse(text: &str) -> Option<Self> {
        let (worker, incarnation) = text.rsplit_once('/')?;
        let is_id = (1..=Self::MAX_WORKER).contains(&worker.len())
            && worker.bytes().all(|byte| byte.is_ascii_graphic());
        let uuid = Uuid::try_parse(incarnation).ok()?;
        let canonical = uuid.hyphenated().to_string() == incarnation;
        (is_id && canonical).then(|| Self::new(worker, incarnation))
    }

    /// The worker's id.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// Which of its lives.
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }
}

impl fmt::Display for WorkerIncarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: &str = "0195f0c2-7a10-7000-8000-00000000002a";

    #[test]
    fn reads_what_it_writes() {
        for worker in ["w", "Host-1.example_org", "a/b", &"x".repeat(WorkerIncarnation::MAX_WORKER)] {
            let written = WorkerIncarnation::new(worker, LIFE);
            assert_eq!(WorkerIncarnation::parse(&written.to_string()), Some(written));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let long = "x".repeat(WorkerIncarnation::MAX_WORKER + 1);
        let upper = LIFE.to_uppercase();
        let bare = LIFE.replace('-', "");
        for (worker, life) in [
            ("", LIFE),
            (long.as_str(), LIFE),
            ("a b", LIFE),
            ("a\u{202e}b", LIFE),
            ("w", ""),
            ("w", "1"),
            ("w", upper.as_str()),
            ("w", bare.as_str()),
        ] {
            assert_eq!(WorkerIncarnation::parse(&format!("{worker}/{life}")), None, "{worker:?} {life:?}");
        }
        assert_eq!(WorkerIncarnation::parse(LIFE), None);
    }
}
