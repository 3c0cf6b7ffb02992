//! Whether the memory that handlers may use fits into the container.

use garenne_common::memory;

/// What the worker itself needs.
const OF_WORKER: u64 = 64 << 20;

/// Warns if all processes at their limits, `limits` bytes together, exceed the memory of the container. The kernel would end
/// its processes, also those that are within their own limits.
pub(crate) fn warn_of_excess(limits: u64) {
    if let Some(problem) = memory::limit().and_then(|container| excess(limits, container.0)) {
        tracing::warn!("{problem}");
    }
}

fn excess(limits: u64, container: u64) -> Option<String> {
    let [limits_mib, worker, container_mib] = [limits, OF_WORKER, container].map(|bytes| bytes >> 20);
    (limits > 0 && limits.saturating_add(OF_WORKER) > container).then(|| {
        format!(
            "the processes of all handlers may use {limits_mib} MiB of memory (handlers.<name>.memory times processes) and the worker \
             {worker} MiB, the container has {container_mib} MiB: lower memory or processes, or raise the limit of the container"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_the_container_are_named_with_its_own() {
        let mib = 1 << 20;
        assert_eq!(excess(0, mib), None);
        assert_eq!(excess(960 * mib, 1024 * mib), None);
        assert_eq!(
            excess(2048 * mib, 1024 * mib).unwrap(),
            "the processes of all handlers may use 2048 MiB of memory (handlers.<name>.memory times processes) and the worker 64 MiB, \
             the container has 1024 MiB: lower memory or processes, or raise the limit of the container"
        );
    }
}
