//! Ships orders, and tests how it does so without a broker: `cargo test -p garenne-examples --bin shop`.

use std::{env, time::Duration};

use garenne::{Data, Exit, TaskContext, TaskError, TaskOptions, cli, json_payload};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Ship {
    order: u32,
}
json_payload!(Ship, "order.ship");

#[derive(Serialize)]
struct Notice {
    text: String,
}

struct Carrier {
    answer: String,
}

async fn ship(cx: TaskContext, carrier: Data<Carrier>, ship: Ship) -> Result<(), TaskError> {
    match carrier.answer.as_str() {
        "closed" => return Err(TaskError::snooze(Duration::from_secs(3600))),
        "broken" if cx.attempt() == 3 => {
            // Published now, because this attempt succeeds: the follow-ups of a failed one are dropped.
            let text = format!("order {} needs a person", ship.order);
            cx.follow_up("staff.notice", &Notice { text })?;
            return Ok(());
        }
        "broken" => return Err(TaskError::retry("the carrier does not answer")),
        _ => {}
    }
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(30)) => {} // the carrier packs it
        () = cx.token().cancelled() => return Err(TaskError::interrupted()),
    }
    cx.follow_up("staff.notice", &Notice { text: format!("order {} is on its way", ship.order) })?;
    Ok(())
}

fn main() -> Exit {
    cli::run("shop", |worker| {
        let carrier = Carrier { answer: env::var("CARRIER")? };
        Ok(worker.data(carrier).handle_with(ship, TaskOptions::long()))
    })
}

#[cfg(test)]
mod tests {
    use garenne::{
        Worker, WorkerConfig,
        testing::{TestOutcome, TestTask, TestWorker},
    };

    use super::*;

    fn worker(answer: &str) -> TestWorker {
        let carrier = Carrier { answer: answer.to_owned() };
        let builder = Worker::builder(WorkerConfig::default()).data(carrier);
        TestWorker::new(builder.handle_with(ship, TaskOptions::long())).unwrap()
    }

    fn order(worker: &TestWorker) -> TestTask<'_> {
        worker.task("order.ship", r#"{"order":7}"#).id("order-7")
    }

    /// With paused time the 30 s are over at once.
    #[tokio::test(start_paused = true)]
    async fn an_order_on_its_way_is_noticed_in_the_same_group() {
        let TestOutcome::Done(output) = order(&worker("open")).group("monday").run().await else {
            panic!("it is shipped");
        };
        let [notice] = &output.follow_ups[..] else { panic!("one notice: {:?}", output.follow_ups) };
        assert_eq!((notice.kind.as_str(), notice.group.as_deref()), ("staff.notice", Some("monday")));
        assert_eq!(notice.body, br#"{"text":"order 7 is on its way"}"#);
    }

    #[tokio::test]
    async fn a_person_is_called_at_the_third_attempt() {
        let worker = worker("broken");
        for (attempt, seconds) in [(1, 1), (2, 3)] {
            let TestOutcome::Retry { error, wait } = order(&worker).attempt(attempt).run().await else {
                panic!("attempt {attempt} is retried");
            };
            assert_eq!((error.as_str(), wait), ("the carrier does not answer", Duration::from_secs(seconds)));
        }
        let TestOutcome::Done(output) = order(&worker).attempt(3).run().await else { panic!("it gives up") };
        assert_eq!(output.follow_ups[0].body, br#"{"text":"order 7 needs a person"}"#);
    }

    #[tokio::test]
    async fn a_closed_carrier_costs_no_attempt() {
        let outcome = order(&worker("closed")).attempt(5).run().await;
        assert!(
            matches!(outcome, TestOutcome::Defer(wait) if wait == Duration::from_secs(3600)),
            "{outcome:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_in_the_middle_hands_the_order_back() {
        let worker = worker("open");
        let outcome = order(&worker).shutdown_after(Duration::from_secs(10)).run().await;
        assert!(matches!(outcome, TestOutcome::HandBack), "{outcome:?}");
    }
}
