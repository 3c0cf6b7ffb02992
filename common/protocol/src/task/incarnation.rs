//! Identifies one run of a worker process: the worker's id and the incarnation, a UUID chosen at start.

use std::fmt;

use uuid::Uuid;

/// A worker's id and its incarnation, as `<worker>/<incarnation>` in headers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerIncarnation {
    worker: String,
    incarnation: String,
}

impl fmt::Display for WorkerIncarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker, self.incarnation)
    }
}

impl WorkerIncarnation {
    /// The maximum size of a worker id that [`parse`](Self::parse) accepts, in bytes.
    pub const MAX_WORKER: usize = 128;

    /// Joins the two without validation. Use [`parse`](Self::parse) for text from outside.
    pub fn new(worker: impl Into<String>, incarnation: impl Into<String>) -> Self {
        Self { worker: worker.into(), incarnation: incarnation.into() }
    }

    /// Parses `<worker>/<incarnation>`: an id of 1 to 128 printable ASCII characters without spaces, and a
    /// lower-case UUID in hyphenated form. `None` for any other text.
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

    /// The incarnation, a UUID.
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INCARNATION: &str = "0195f0c2-7a10-7000-8000-00000000002a";

    #[test]
    fn display_and_parse_round_trip() {
        for worker in ["w", "Host-1.example_org", "a/b", &"x".repeat(WorkerIncarnation::MAX_WORKER)] {
            let written = WorkerIncarnation::new(worker, INCARNATION);
            assert_eq!(WorkerIncarnation::parse(&written.to_string()), Some(written));
        }
    }

    #[test]
    fn invalid_worker_ids_and_uuids_are_refused() {
        let long = "x".repeat(WorkerIncarnation::MAX_WORKER + 1);
        let upper = INCARNATION.to_uppercase();
        let bare = INCARNATION.replace('-', "");
        for (worker, incarnation) in [
            ("", INCARNATION),
            (long.as_str(), INCARNATION),
            ("a b", INCARNATION),
            ("a\u{202e}b", INCARNATION),
            ("w", ""),
            ("w", "1"),
            ("w", upper.as_str()),
            ("w", bare.as_str()),
        ] {
            let text = format!("{worker}/{incarnation}");
            assert_eq!(WorkerIncarnation::parse(&text), None, "{text:?}");
        }
        assert_eq!(WorkerIncarnation::parse(INCARNATION), None);
    }
}
