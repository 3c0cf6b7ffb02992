//! Catches panics of code that is awaited in place.

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use garenne_pool::panic_message;

/// Runs a future. A panic in it becomes an error with the panic's message.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(panic_message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_with_its_message() {
        assert_eq!(caught(async { 7 }).await, Ok(7));
        let panics = async {
            if true {
                panic!("out of range")
            }
        };
        assert_eq!(caught(panics).await, Err("out of range".to_owned()));
    }
}
