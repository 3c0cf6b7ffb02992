//! Where the parts of an analysis run: in place, or on the workers of a task.

use std::{
    ops::{ControlFlow, Range},
    sync::atomic::{AtomicUsize, Ordering},
};

use garenne::TaskContext;

use super::SpectrumError;

/// Runs parts of an analysis that do not depend on each other.
pub(super) enum Parts<'a> {
    /// In place, one after the other. The function receives the progress before each part and may stop the analysis.
    InPlace(&'a mut (dyn FnMut(f64) -> ControlFlow<()> + Send)),
    /// On the worker of a task and on those that help it.
    OnWorkers(&'a TaskContext),
}

impl Parts<'_> {
    /// Returns the results of `part(0)` to `part(count - 1)`, in this order. Reports progress within `progress`.
    pub(super) async fn map<T: Send + 'static>(
        &mut self,
        progress: Range<f64>,
        count: usize,
        part: impl Fn(usize) -> T + Send + Sync + 'static,
    ) -> Result<Vec<T>, SpectrumError> {
        let fraction =
            move |done: usize| progress.start + (progress.end - progress.start) * done as f64 / count as f64;
        match self {
            Self::InPlace(on_progress) => {
                let run = |index| match on_progress(fraction(index)) {
                    ControlFlow::Continue(()) => Ok(part(index)),
                    ControlFlow::Break(()) => Err(SpectrumError::Stopped),
                };
                (0..count).map(run).collect()
            }
            Self::OnWorkers(cx) => {
                let (reporter, done) = (cx.clone(), AtomicUsize::new(0));
                let part = move |index| {
                    reporter.progress(fraction(done.fetch_add(1, Ordering::Relaxed)));
                    part(index)
                };
                cx.spread(count, part).await.map_err(|_| SpectrumError::Stopped)
            }
        }
    }
}
