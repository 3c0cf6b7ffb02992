//! A delivery that goes on when its sender is gone.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;

/// Polls a delivery to its end. Dropped before that, it leaves the delivery to a task of its own: what is on its way
/// to the broker stays in memory until its confirm, and so does the reservation for it.
pub(super) struct Delivery<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Delivery<T> {
    pub(super) fn new(delivering: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(delivering)))
    }
}

impl<T: Send + 'static> Future for Delivery<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(delivering) = &mut self.0 else { return Poll::Pending };
        let polled = delivering.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Delivery<T> {
    fn drop(&mut self) {
        if let Some(delivering) = self.0.take()
            // Without a runtime the process ends, and its memory with it.
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { drop(delivering.await) });
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
        let mut delivery = Delivery::new(async move {
            let _held = end;
            let _ = confirmed.await;
        });
        assert!(futures_util::poll!(&mut delivery).is_pending());
        drop(delivery);
        tokio::task::yield_now().await;
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty), "still held");
        confirm.send(()).unwrap();
        assert!(ended.await.is_err(), "released");
    }
}
