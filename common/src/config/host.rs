//! The host's name, as a part of other names.

/// The host's name; empty if it cannot be read. In Kubernetes, the pod's.
pub fn full_host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The host's name, reduced to at most 40 of a-z A-Z 0-9 and `-`; empty if it cannot be read.
pub fn host_name() -> String {
    full_host_name().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect()
}
