//! Catches panics of user code: tasks, completions, observers and destructors.

use std::{
    any::Any,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Runs `code`. Returns its panic message if it panics.
pub(crate) fn catch<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(panic_message)
}

/// Locks a mutex, even if another thread panicked with it: user code is caught, so the data is consistent.
pub(crate) fn lock<D>(mutex: &Mutex<D>) -> MutexGuard<'_, D> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops values of a user's type one by one, ignoring panics of their destructors.
pub(crate) fn drop_all<V>(values: impl IntoIterator<Item = V>) {
    for value in values {
        let _ = catch(|| drop(value));
    }
}

/// The message of a panic, from the payload that `catch_unwind` returns.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&'static str>().copied());
    let message = text.unwrap_or("panic payload is not a string").to_owned();
    // The payload's destructor may panic too. Leaking that second payload ends the chain.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(payload))).map_err(mem::forget);
    message
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    struct PanicsOnDrop;

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            // `resume_unwind` skips the panic hook, which would print a backtrace.
            resume_unwind(Box::new("dropped"));
        }
    }

    #[test]
    fn messages_are_read_from_string_payloads_only() {
        assert_eq!(panic_message(Box::new("static")), "static");
        assert_eq!(panic_message(Box::new("owned".to_owned())), "owned");
        assert_eq!(panic_message(Box::new(7)), "panic payload is not a string");
    }

    #[test]
    fn a_payload_whose_destructor_panics_is_caught() {
        let caught = catch(|| resume_unwind(Box::new(PanicsOnDrop)));
        assert_eq!(caught, Err("panic payload is not a string".to_owned()));
    }

    #[test]
    fn each_value_is_dropped_although_an_earlier_destructor_panics() {
        let last = std::sync::Arc::new(());
        let values: Vec<(Option<PanicsOnDrop>, _)> =
            vec![(Some(PanicsOnDrop), None), (Some(PanicsOnDrop), None), (None, Some(last.clone()))];
        drop_all(values);
        assert_eq!(std::sync::Arc::strong_count(&last), 1);
    }
}
