//! Reply codes of the broker that the worker handles.

/// The user lacks a permission.
pub(super) const ACCESS_REFUSED: u16 = 403;
/// The queue does not exist.
pub(super) const NOT_FOUND: u16 = 404;
/// Another connection holds the exclusive queue.
pub(super) const RESOURCE_LOCKED: u16 = 405;

/// The reply code of an error that the broker sent.
pub(super) fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}
