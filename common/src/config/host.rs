//! This machine's name, as far as it may be part of another name.

/// The host's name, at most 40 of a-z A-Z 0-9 and `-`; empty where the system does not tell.
pub fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect()
}
