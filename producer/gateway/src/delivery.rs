//! Deliveries to the broker, apart from the connections that wait for them.

use std::panic::resume_unwind;

use tokio::runtime::Handle;

/// Runs deliveries on the runtime of the broker's connection.
///
/// A delivery goes on when its sender is gone: what is on its way to the broker stays in memory until its confirm, and
/// so does the reservation for it.
#[derive(Clone, Debug)]
pub(super) struct Deliveries(Handle);

impl Deliveries {
    /// On the runtime that calls this.
    pub(super) fn here() -> Self {
        Self(Handle::current())
    }

    /// The delivery's outcome; none if that runtime ends before.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        delivering: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        match self.0.spawn(delivering).await {
            Ok(outcome) => Some(outcome),
            // As if it had happened here: the connection ends and the panic is logged.
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_delivery_ends_with_its_confirm_and_not_with_its_sender() {
        let (confirm, confirmed) = oneshot::channel::<()>();
        let (end, mut ended) = oneshot::channel::<()>();
        let deliveries = Deliveries::here();
        let mut delivery = Box::pin(deliveries.run(async move {
            let _held = end;
            let _ = confirmed.await;
        }));
        assert!(futures_util::poll!(&mut delivery).is_pending());
        drop(delivery);
        tokio::task::yield_now().await;
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty), "still held");
        confirm.send(()).unwrap();
        assert!(ended.await.is_err(), "released");
    }
}
