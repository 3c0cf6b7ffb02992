//! `spectrum.analyze` as a task: long, on the threads for such work, and stopped between segments.

use std::{ops::ControlFlow, time::Duration};

use super::{Answer, Payload, Refusal, analyze};
use garenne::{
    handler::{TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

json_payload!(Payload, "spectrum.analyze");

/// Sixteen million samples take a few seconds.
const DEADLINE: Duration = Duration::from_secs(300);

/// Adds the kind.
pub fn register(builder: WorkerBuilder) -> WorkerBuilder {
    builder.handle_with(answer, TaskOptions::long().deadline(DEADLINE).cpu_bound())
}

async fn answer(cx: TaskContext, payload: Payload) -> Result<Answer, TaskError> {
    let mut watch = |done: f64| {
        cx.progress(done);
        if cx.token().is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    analyze(&payload, &mut watch).map_err(|refusal| match refusal {
        Refusal::Stopped => TaskError::interrupted(),
        refusal => TaskError::invalid(refusal),
    })
}
