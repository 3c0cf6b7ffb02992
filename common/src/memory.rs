//! The memory that this process may use.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::config::Size;

/// Where Linux mounts control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The memory limit of this process's control group, which containers and systemd units have. `None` without a limit,
/// and on other systems than Linux.
pub fn limit() -> Option<Size> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_below(Path::new(CGROUPS), &groups)
}

/// The smallest limit of the control groups in `groups`, which has the format of `/proc/self/cgroup`, and of those
/// that contain them.
fn limit_below(root: &Path, groups: &str) -> Option<Size> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (folder, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        limits(&folder, path, file)
    });
    limits.min()
}

/// The limits of a control group and of those that contain it, down to the mounted one. A container may see itself at
/// the root, under another path than its process has.
fn limits(folder: &Path, path: &str, file: &str) -> Vec<Size> {
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    let files: Vec<PathBuf> = groups.map(|group| folder.join(group).join(file)).collect();
    let limit = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    // Version 1 writes a huge number if there is no limit; version 2 writes `max`.
    files.iter().filter_map(limit).filter(|bytes| *bytes < 1 << 60).map(Size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_of_all_enclosing_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = |groups: &str| limit_below(root.path(), groups);
        assert_eq!(limit("0::/unit\n"), None);
        write("slice/unit/memory.max", "max\n");
        assert_eq!(limit("0::/slice/unit\n"), None);
        write("slice/memory.max", "536870912\n");
        assert_eq!(limit("0::/slice/unit\n"), Some(Size::mib(512)));
        write("slice/unit/memory.max", "1048576\n");
        assert_eq!(limit("0::/slice/unit\n"), Some(Size::mib(1)));
        write("memory.max", "3145728\n");
        assert_eq!(limit("0::/slice/unit\n"), Some(Size::mib(1)));
        // Within a container, the path may be one of the host.
        assert_eq!(limit("0::/docker/0123\n"), Some(Size::mib(3)));
        // Version 1, in a container that sees its own group at the root.
        write("memory/memory.limit_in_bytes", "2097152\n");
        assert_eq!(limit("5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n"), Some(Size::mib(2)));
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("4:memory:/docker/1\n"), None);
    }
}
