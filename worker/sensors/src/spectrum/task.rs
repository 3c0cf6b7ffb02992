//! `spectrum.analyze` as a task: long, CPU-bound, and stopped between segments when it is cancelled.

use std::{ops::ControlFlow, time::Duration};

use super::{Answer, Payload, SpectrumError, analyze};
use garenne::{
    handler::{TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

json_payload!(Payload, "spectrum.analyze");

/// Time limit of a task. Sixteen million samples take a few seconds.
const DEADLINE: Duration = Duration::from_secs(300);

/// Registers the kind.
pub fn register(builder: WorkerBuilder) -> WorkerBuilder {
    builder.handle_with(answer, TaskOptions::long().deadline(DEADLINE).cpu_bound())
}

async fn answer(cx: TaskContext, payload: Payload) -> Result<Answer, TaskError> {
    let mut on_progress = |done: f64| {
        cx.progress(done);
        if cx.token().is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    analyze(&payload, &mut on_progress).map_err(|error| match error {
        SpectrumError::Stopped => TaskError::interrupted(),
        error => TaskError::invalid(error),
    })
}
