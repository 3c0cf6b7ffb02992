//! Whether the memory that handlers may use fits into the container.

use std::{fs, path::Path};

/// What the worker itself needs.
const OF_WORKER: u64 = 64 << 20;

/// Warns if all processes at their limits, `limits` bytes together, exceed the memory of the container. The kernel would end
/// its processes, also those that are within their own limits.
pub(crate) fn warn_of_excess(limits: u64) {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let container = container_limit(Path::new("/sys/fs/cgroup"), &cgroups);
    if let Some(problem) = container.and_then(|container| excess(limits, container)) {
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

/// The lowest limit of the cgroups that this process is in, which are files below `root`. `cgroups` is `/proc/self/cgroup`.
fn container_limit(root: &Path, cgroups: &str) -> Option<u64> {
    let of_hierarchy = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let own = root.join(path.trim_start_matches('/'));
        let above = own.ancestors().take_while(|cgroup| cgroup.starts_with(&root));
        above.filter_map(|cgroup| fs::read_to_string(cgroup.join(file)).ok()?.trim().parse().ok()).min()
    };
    cgroups.lines().filter_map(of_hierarchy).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_all_cgroups_above_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let limit = |cgroups: &str| container_limit(root.path(), cgroups);
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "2000\n");
        assert_eq!(limit("0::/a/b\n"), Some(2000));
        write("memory.max", "3000\n");
        assert_eq!(limit("0::/a/b\n"), Some(2000));
        // Within a container, the path may be one of the host.
        assert_eq!(limit("0::/docker/0123\n"), Some(3000));
        write("memory/c/memory.limit_in_bytes", "1000\n");
        assert_eq!(limit("5:cpu:/c\n4:memory:/c\n0::/a/b\n"), Some(1000));
    }

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
