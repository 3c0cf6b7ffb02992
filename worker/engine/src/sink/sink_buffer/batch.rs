//! A batch of results, and the answers for them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::SystemTime,
};

use super::{Answer, SinkItem};
use crate::{
    consumer::ChannelGeneration,
    sink::{Accepted, Finished},
    spans::AttemptSpan,
};
use garenne_common::supervise::count_panic;

/// Results that are offered to a sink together.
pub(super) struct Batch {
    pub(super) finished: Vec<Finished>,
    /// The other parts of each item, by the same index.
    rest: Vec<ItemRest>,
}

/// A [`SinkItem`] without its result.
struct ItemRest {
    span: AttemptSpan,
    generation: Arc<ChannelGeneration>,
    answer: Answer,
}

impl Batch {
    pub(super) fn of(items: impl Iterator<Item = SinkItem>) -> Self {
        let split = |SinkItem { finished, span, generation, answer }| {
            (finished, ItemRest { span, generation, answer })
        };
        let (finished, rest) = items.map(split).unzip();
        Self { finished, rest }
    }

    pub(super) fn answer(self, answers: Vec<Accepted>, sink: &'static str, began: SystemTime) {
        let size = self.rest.len();
        for (ItemRest { span, answer, .. }, accepted) in self.rest.into_iter().zip(answers) {
            if span.is_kept() {
                span.record_sink_write(sink, size, began, accepted.error());
            }
            call_answer(answer, Some(accepted));
        }
    }

    pub(super) fn give_up(self) {
        self.rest.into_iter().for_each(|rest| call_answer(rest.answer, None));
    }

    /// Drops results whose channel has died.
    pub(super) fn drop_dead(&mut self) {
        if self.rest.iter().all(|rest| rest.generation.alive()) {
            return;
        }
        let items = std::mem::take(&mut self.finished).into_iter().zip(std::mem::take(&mut self.rest));
        for (finished, rest) in items {
            if rest.generation.alive() {
                self.finished.push(finished);
                self.rest.push(rest);
            } else {
                call_answer(rest.answer, None);
            }
        }
    }
}

/// Calls an answer. A panic in it concerns one task's settlement and must not end the writer.
pub(super) fn call_answer(answer: Answer, accepted: Option<Accepted>) {
    if catch_unwind(AssertUnwindSafe(|| answer(accepted))).is_err() {
        // The panic hook has logged it. Unwinding dropped the delivery, which hands it back.
        count_panic("settlement");
    }
}
