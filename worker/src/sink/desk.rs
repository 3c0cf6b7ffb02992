//! Gathers finished tasks for the sinks: while one batch is written the next one fills, so at low
//! load nothing waits and at high load batches are large.

use std::{sync::Arc, time::SystemTime};

use garenne_common::broker::Backoff;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Accepted, Finished, Sink};
use crate::{hurry::last_word, spans::AttemptSpan};

/// The largest batch, results.
const BATCH: usize = 512;

/// A finished task and whoever wants to know what the sinks said; [`None`] when they never could.
pub(crate) struct Parcel {
    pub(crate) finished: Finished,
    pub(crate) span: AttemptSpan,
    pub(crate) answer: Box<dyn FnOnce(Option<Accepted>) + Send>,
}

/// Takes parcels to the sinks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Desk(Option<mpsc::UnboundedSender<Parcel>>);

impl Desk {
    /// A desk in front of these sinks. Once `hurry` is cancelled an absent sink is not waited for
    /// any longer.
    pub(crate) fn open(sinks: Vec<Arc<dyn Sink>>, hurry: CancellationToken) -> Self {
        if sinks.is_empty() {
            return Self(None);
        }
        // Bounded by the prefetches: each parcel is an unsettled delivery.
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(serve(sinks, receiver, hurry));
        Self(Some(sender))
    }

    /// Whether there is any sink at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn hand_over(&self, parcel: Parcel) {
        match &self.0 {
            Some(sender) => {
                if let Err(mpsc::error::SendError(parcel)) = sender.send(parcel) {
                    (parcel.answer)(None);
                }
            }
            None => (parcel.answer)(Some(Accepted::Stored)),
        }
    }
}

async fn serve(
    sinks: Vec<Arc<dyn Sink>>,
    mut parcels: mpsc::UnboundedReceiver<Parcel>,
    hurry: CancellationToken,
) {
    let mut buffer = Vec::with_capacity(BATCH);
    while parcels.recv_many(&mut buffer, BATCH).await > 0 {
        let kept = buffer.iter().enumerate().filter(|(_, parcel)| parcel.span.is_kept());
        let traced: Vec<_> = kept.map(|(at, parcel)| (at, parcel.span.clone())).collect();
        let (batch, answers): (Vec<_>, Vec<_>) = buffer.drain(..).map(|p| (p.finished, p.answer)).unzip();
        let accepted = write_all(&sinks, &batch, &traced, &hurry).await;
        match accepted {
            Some(accepted) => {
                answers.into_iter().zip(accepted).for_each(|(answer, accepted)| answer(Some(accepted)));
            }
            None => answers.into_iter().for_each(|answer| answer(None)),
        }
    }
}

/// Every sink in turn; a conflict in one is the word on that result.
async fn write_all(
    sinks: &[Arc<dyn Sink>],
    batch: &[Finished],
    traced: &[(usize, AttemptSpan)],
    hurry: &CancellationToken,
) -> Option<Vec<Accepted>> {
    let mut word = vec![Accepted::Stored; batch.len()];
    for sink in sinks {
        let (mut backoff, began) = (Backoff::default(), SystemTime::now());
        let accepted = loop {
            let written = tokio::select! {
                written = sink.write(batch) => written,
                // Whether it was written is not known: the tasks go back, and sinks write them once.
                () = last_word(hurry) => return None,
            };
            let problem = match written {
                Ok(accepted) if accepted.len() == batch.len() => break accepted,
                Ok(accepted) => {
                    format!("sink {} answered {} of {}", sink.name(), accepted.len(), batch.len())
                }
                Err(error) => error.to_string(),
            };
            let wait = backoff.next_wait();
            tracing::warn!(problem, ?wait, waiting = batch.len(), "results wait for a sink");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = hurry.cancelled() => return None,
            }
        };
        for (at, span) in traced {
            span.wrote(sink.name(), batch.len(), began, &accepted[*at]);
        }
        for (word, accepted) in word.iter_mut().zip(accepted) {
            *word = std::mem::replace(word, Accepted::Stored).and(accepted);
        }
    }
    Some(word)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use futures_util::{FutureExt, future::BoxFuture};
    use tokio::sync::oneshot;

    use super::*;
    use crate::{sink::SinkError, testing::finished};

    struct Flaky {
        failures: AtomicUsize,
    }

    impl Sink for Flaky {
        fn name(&self) -> &'static str {
            "flaky"
        }

        fn write<'a>(&'a self, batch: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
            let left = self.failures.load(Ordering::Relaxed);
            let answer = if left > 0 {
                self.failures.store(left - 1, Ordering::Relaxed);
                Err(SinkError { sink: "flaky", detail: "away".into() })
            } else {
                Ok(vec![Accepted::Stored; batch.len()])
            };
            std::future::ready(answer).boxed()
        }
    }

    fn parcel() -> (Parcel, oneshot::Receiver<Option<Accepted>>) {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::new(move |accepted| drop(sender.send(accepted)));
        (Parcel { finished: finished("t", "{}"), span: AttemptSpan::default(), answer }, receiver)
    }

    #[tokio::test(start_paused = true)]
    async fn an_absent_sink_is_waited_for() {
        let desk = Desk::open(vec![Arc::new(Flaky { failures: 5.into() })], CancellationToken::new());
        let (parcel, word) = parcel();
        desk.hand_over(parcel);
        assert_eq!(word.await.unwrap(), Some(Accepted::Stored));
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_hurry_an_absent_sink_means_not_stored() {
        let hurry = CancellationToken::new();
        let desk = Desk::open(vec![Arc::new(Flaky { failures: usize::MAX.into() })], hurry.clone());
        let (parcel, word) = parcel();
        desk.hand_over(parcel);
        tokio::time::sleep(Duration::from_secs(60)).await;
        hurry.cancel();
        assert_eq!(word.await.unwrap(), None);
    }

    struct Frozen;

    impl Sink for Frozen {
        fn name(&self) -> &'static str {
            "frozen"
        }

        fn write<'a>(&'a self, _: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>> {
            std::future::pending().boxed()
        }
    }

    /// Its connection is open and nobody answers.
    #[tokio::test(start_paused = true)]
    async fn in_a_hurry_a_frozen_sink_means_not_stored() {
        let hurry = CancellationToken::new();
        let desk = Desk::open(vec![Arc::new(Frozen)], hurry.clone());
        let (parcel, word) = parcel();
        desk.hand_over(parcel);
        hurry.cancel();
        assert_eq!(word.await.unwrap(), None);
    }
}
