use std::sync::Mutex;

use futures_util::future::BoxFuture;
use garenne_protocol::{sensor::Timestamp, task::TaskId};

use super::*;

/// Answers with what it was told to, then takes everything.
struct Moody {
    setbacks: Mutex<Vec<Setback>>,
    taken: Mutex<Vec<f64>>,
}

impl Destination for Moody {
    fn deliver<'a>(&'a self, batch: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, Setback>> {
        Box::pin(async {
            if let Some(setback) = self.setbacks.lock().unwrap().pop() {
                return Err(setback);
            }
            self.taken.lock().unwrap().extend(batch.iter().map(|reading| reading.value));
            Ok(batch.iter().map(garenne_gateway::identity::of).collect())
        })
    }
}

fn batch(values: &[f64]) -> Vec<Reading> {
    let time = Timestamp::from_micros(0).unwrap();
    let reading = |&value: &f64| Reading { device: "d".into(), metric: "m".into(), value, unit: None, time };
    values.iter().map(reading).collect()
}

async fn run(mut setbacks: Vec<Setback>, batches: &[&[f64]]) -> (Vec<f64>, [u64; 4], Option<String>) {
    setbacks.reverse();
    let moody = Arc::new(Moody { setbacks: Mutex::new(setbacks), taken: Mutex::default() });
    let config = CourierConfig { in_flight: 1, retry_for: Duration::from_secs(60) };
    let courier = Courier::new(moody.clone(), None, config);
    let tally = courier.tally();
    for values in batches {
        courier.send(batch(values)).await;
    }
    let failure = courier.finish().await.map(|(why, _)| why);
    let counts = [&tally.delivered, &tally.refused, &tally.undelivered, &tally.retries];
    let taken = moody.taken.lock().unwrap().clone();
    (taken, counts.map(|count| count.load(Relaxed)), failure)
}

fn again() -> Setback {
    Setback::Again { why: "503 busy".to_owned(), after: Some(Duration::from_secs(2)) }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_taken_now_is_sent_again() {
    let (taken, counts, failure) = run(vec![again(), again()], &[&[1.0, 2.0], &[3.0]]).await;
    assert_eq!((taken, counts, failure), (vec![1.0, 2.0, 3.0], [3, 0, 0, 2], None));
}

#[tokio::test(start_paused = true)]
async fn a_refused_reading_does_not_take_its_neighbours_along() {
    let refused = Setback::Reading { index: 1, why: "422 unit".to_owned() };
    let (taken, counts, failure) = run(vec![refused], &[&[1.0, 2.0, 3.0]]).await;
    assert_eq!((taken, counts, failure), (vec![1.0, 3.0], [2, 1, 0, 0], None));
}

#[tokio::test(start_paused = true)]
async fn patience_ends_and_what_was_not_delivered_is_counted() {
    let (taken, [delivered, _, undelivered, _], failure) = run(vec![again(); 100], &[&[1.0, 2.0]]).await;
    assert_eq!((taken.len(), delivered, undelivered), (0, 0, 2));
    assert_eq!(failure.as_deref(), Some("given up after 60s: 503 busy"));
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_will_never_take_anything_ends_it_at_once() {
    let never = Setback::Never { why: "401 a token is needed".to_owned(), exit: Exit::Failed };
    let (taken, counts, failure) = run(vec![never], &[&[1.0], &[2.0]]).await;
    assert_eq!((taken.len(), counts), (0, [0, 0, 2, 0]));
    assert_eq!(failure.as_deref(), Some("401 a token is needed"));
}
