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
pub fn of(error: &lapin::Error) -> Option<(u16, &str)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().as_str())),
        _ => None,
    }
}
