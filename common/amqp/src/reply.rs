//! The broker's reply to a method that it refuses.

use lapin::ErrorKind;

/// The user lacks a permission.
pub const ACCESS_REFUSED: u16 = 403;
/// The queue or exchange does not exist.
pub const NOT_FOUND: u16 = 404;
/// Another connection holds the exclusive queue.
pub const RESOURCE_LOCKED: u16 = 405;
/// The queue or exchange has other arguments, or the message is too large.
pub const PRECONDITION_FAILED: u16 = 406;
/// The virtual host does not exist, or the user may not enter it.
pub const NOT_ALLOWED: u16 = 530;

/// The reply code and text of an error, if the broker sent them.
///
/// None also for a queue whose node is down, such as while a broker starts. The broker says 404 of it as of a queue that does
/// not exist, but it does.
pub fn of(error: &lapin::Error) -> Option<(u16, &str)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => {
            Some((error.get_id(), error.get_message().as_str())).filter(|(code, text)| !is_down(*code, text))
        }
        _ => None,
    }
}

fn is_down(code: u16, text: &str) -> bool {
    code == NOT_FOUND && text.contains("is down or inaccessible")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_whose_node_is_down_is_not_missing() {
        let down = "NOT_FOUND - home node 'rabbit@a' of durable queue 'garenne.directives' in vhost '/' is down or inaccessible";
        assert!(is_down(NOT_FOUND, down));
        assert!(!is_down(NOT_FOUND, "NOT_FOUND - no queue 'garenne.directives' in vhost '/'"));
    }
}
