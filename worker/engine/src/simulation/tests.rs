use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_common::{
    config::{Concurrency, Lane, Lanes},
    shutdown::Mode,
    simulation::Simulation,
};
use garenne_protocol::amqp::BasicProperties;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::*;
use crate::{TaskContext, TaskError, TaskOptions, WorkerConfig, json_payload};

mod memory_broker;

use memory_broker::{Connection, MemoryBroker};

#[derive(Deserialize)]
struct Work {
    seconds: u64,
}
json_payload!(Work, "some.work");

const QUEUE: &str = "garenne.tasks.fast";

/// A worker of one lane with one handler at a time. `runs` counts the handlers that have ended.
fn start(broker: &MemoryBroker, name: &str, runs: &Arc<AtomicUsize>) -> (SimulatedWorker, Connection) {
    let lane =
        Lane { prefetch: 4, concurrency: Concurrency { min: 1, max: 2 }, ..Lane::bound_to(["some.*"]) };
    let lanes: Lanes = [("fast".to_owned(), lane)].into_iter().collect();
    let mut config =
        WorkerConfig { worker_id: Some(name.into()), lanes, sinks: Vec::new(), ..WorkerConfig::default() };
    config.common.events.heartbeat = Duration::ZERO;
    let (runs, thread) = (Arc::clone(runs), std::thread::current().id());
    let handler = move |_: TaskContext, work: Work| {
        let runs = Arc::clone(&runs);
        async move {
            sleep(Duration::from_secs(work.seconds)).await;
            assert_eq!(std::thread::current().id(), thread);
            let run = runs.fetch_add(1, Ordering::Relaxed);
            if run % 4 == 3 { Err(TaskError::retry("every fourth")) } else { Ok(()) }
        }
    };
    let builder = Worker::builder(config).handle_with(handler, TaskOptions::long().cpu_bound());
    let (connection, publish) = (broker.connection(), Arc::new(broker.clone()));
    (SimulatedWorker::start(builder, connection.clone(), publish, Arc::default()).unwrap(), connection)
}

fn put(broker: &MemoryBroker, ids: std::ops::Range<usize>, seconds: u64) {
    for id in ids {
        let properties = BasicProperties::default().with_message_id(format!("t{id}").into());
        broker.put(QUEUE, "some.work", properties, format!(r#"{{"seconds": {seconds}}}"#).into_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_runs_tasks_of_another_broker_and_a_soft_stop_hands_back_what_waits() {
    let _simulation = Simulation::begin(1);
    let (broker, runs, began) = (MemoryBroker::default(), Arc::default(), Instant::now());
    let (worker, _) = start(&broker, "one", &runs);
    put(&broker, 0..1, 60);
    sleep(Duration::from_secs(65)).await;
    assert_eq!((runs.load(Ordering::Relaxed), broker.ready(QUEUE), broker.unacked()), (1, 0, 0));

    put(&broker, 1..4, 60);
    sleep(Duration::from_secs(1)).await;
    worker.command(Command::Shutdown(Mode::Soft));
    let receipt = worker.receipt().await.unwrap().unwrap();
    assert!(receipt.balances(), "{receipt:?}");
    assert_eq!((receipt.delivered, receipt.acked, receipt.requeued), (4, 3, 1));
    assert_eq!((runs.load(Ordering::Relaxed), broker.ready(QUEUE), broker.unacked()), (3, 1, 0));
    assert!(began.elapsed() < Duration::from_secs(200), "{:?}", began.elapsed());
    sleep(Duration::from_secs(5)).await;
    assert_eq!((Arc::strong_count(&runs), broker.references()), (1, 1), "nothing of the worker is left");
}

#[tokio::test(start_paused = true)]
async fn a_crash_ends_one_of_two_workers_and_the_other_gets_its_tasks() {
    let _simulation = Simulation::begin(2);
    let broker = MemoryBroker::default();
    let (runs, other_runs) = (Arc::default(), Arc::default());
    let (one, connection) = start(&broker, "one", &runs);
    sleep(Duration::from_secs(5)).await;
    put(&broker, 0..4, 60);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(broker.unacked(), 4);
    let (other, _) = start(&broker, "other", &other_runs);
    sleep(Duration::from_secs(5)).await;
    broker.end(connection.id);
    one.crash();
    assert_eq!(broker.unacked(), 4, "they were delivered again");
    sleep(Duration::from_secs(600)).await;
    assert_eq!((runs.load(Ordering::Relaxed), other_runs.load(Ordering::Relaxed)), (0, 4));
    assert!(one.has_ended() && one.receipt().await.is_none());
    assert_eq!(Arc::strong_count(&runs), 1, "nothing of the crashed worker is left");
    other.command(Command::Shutdown(Mode::Light));
    let receipt = other.receipt().await.unwrap().unwrap();
    assert_eq!((receipt.balances(), receipt.acked, receipt.retried), (true, 3, 1));
}

/// Two workers that share tasks, of which every fourth fails: all that they send, in order.
fn history(seed: u64) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let _simulation = Simulation::begin(seed);
        let (broker, runs) = (MemoryBroker::default(), Arc::default());
        let workers = ["one", "other"].map(|name| start(&broker, name, &runs).0);
        put(&broker, 0..100, 1);
        sleep(Duration::from_secs(20)).await;
        for worker in workers {
            worker.command(Command::Shutdown(Mode::Soft));
            assert!(worker.receipt().await.unwrap().unwrap().balances());
        }
        broker.frames()
    })
}

#[test]
fn a_history_repeats_itself_with_its_seed() {
    let first = history(7);
    assert!(first.len() > 50, "{first:#?}");
    assert_eq!(history(7), first);
    assert_ne!(history(8), first);
}
