use std::sync::Mutex;

use futures_util::future::BoxFuture;
use garenne_protocol::task::reading_id;

use super::*;

/// Fails with the given errors in order, then accepts everything.
struct ScriptedDestination {
    /// In reverse order.
    errors: Mutex<Vec<SendError>>,
    accepted: Mutex<Vec<f64>>,
}

impl Destination for ScriptedDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(async {
            if let Some(error) = self.errors.lock().unwrap().pop() {
                return Err(error);
            }
            self.accepted.lock().unwrap().extend(readings.iter().map(|reading| reading.value));
            Ok(readings.iter().map(reading_id).collect())
        })
    }
}

fn readings(values: &[f64]) -> Vec<Reading> {
    let time = Timestamp::from_micros(0).unwrap();
    let reading = |&value: &f64| Reading {
        device: "d".into(),
        metric: "m".into(),
        value,
        unit: None,
        counter: None,
        time,
    };
    values.iter().map(reading).collect()
}

/// Returns the accepted values, the counters (delivered, refused, undelivered, retries), and the failure.
async fn run(mut errors: Vec<SendError>, requests: &[&[f64]]) -> (Vec<f64>, [u64; 4], Option<String>) {
    errors.reverse();
    let destination =
        Arc::new(ScriptedDestination { errors: Mutex::new(errors), accepted: Mutex::default() });
    let sender = RetryingSender::new(None, Duration::from_secs(60));
    let queue = DeliveryQueue::new(Arc::clone(&sender), destination.clone(), 1);
    for values in requests {
        queue.push(readings(values)).await;
    }
    queue.finish().await;
    let failure = sender.failure().map(|failure| failure.line);
    let counts = &sender.counts;
    let counters = [&counts.delivered, &counts.refused, &counts.undelivered, &counts.retries];
    let accepted = destination.accepted.lock().unwrap().clone();
    (accepted, counters.map(|count| count.load(Relaxed)), failure)
}

fn busy() -> SendError {
    SendError::Retry { reason: "503 busy".to_owned(), retry_after: Some(Duration::from_secs(2)) }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_sent_again_until_it_is_confirmed() {
    let (accepted, counts, failure) = run(vec![busy(), busy()], &[&[1.0, 2.0], &[3.0]]).await;
    assert_eq!((accepted, counts, failure), (vec![1.0, 2.0, 3.0], [3, 0, 0, 2], None));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_reading_is_removed_and_the_others_are_sent() {
    let invalid = SendError::InvalidReading { index: 1, reason: "422 unit".to_owned() };
    let (accepted, counts, failure) = run(vec![invalid], &[&[1.0, 2.0, 3.0]]).await;
    assert_eq!((accepted, counts, failure), (vec![1.0, 3.0], [2, 1, 0, 0], None));
}

#[tokio::test(start_paused = true)]
async fn readings_are_given_up_and_counted_after_the_retry_time() {
    let (accepted, [delivered, _, undelivered, _], failure) = run(vec![busy(); 100], &[&[1.0, 2.0]]).await;
    assert_eq!((accepted.len(), delivered, undelivered), (0, 0, 2));
    assert_eq!(failure.as_deref(), Some("given up after 60s: 503 busy"));
}

#[tokio::test(start_paused = true)]
async fn a_fatal_error_ends_all_requests_at_once() {
    let fatal = SendError::Fatal(Failure::new(Exit::Failed, "401 not authenticated"));
    let (accepted, counts, failure) = run(vec![fatal], &[&[1.0], &[2.0]]).await;
    assert_eq!((accepted.len(), counts), (0, [0, 0, 2, 0]));
    assert_eq!(failure.as_deref(), Some("401 not authenticated"));
}
