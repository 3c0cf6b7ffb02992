//! The operating system's user of this process. Not `$USER`, which anybody can set.

use std::{fs, os::unix::fs::MetadataExt};

/// The name of the process's user, or `uid` and its number if `/etc/passwd` does not have it.
pub(super) fn current() -> Option<String> {
    let uid = fs::metadata("/proc/self").ok()?.uid();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(name(&users, uid).unwrap_or_else(|| format!("uid {uid}")))
}

fn name(users: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
        (id == uid && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_looked_up_by_the_number() {
        let users = "root:x:0:0::/root:/bin/sh\n# none\nanna:x:1000:1000::/home/anna:/bin/sh\n";
        assert_eq!(name(users, 1000).as_deref(), Some("anna"));
        assert_eq!(name(users, 100), None);
    }
}
