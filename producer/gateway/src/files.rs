//! A connection is a file to the system, and the usual limit on files is made for other programs.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit on open files as far as this process may.
pub fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}
