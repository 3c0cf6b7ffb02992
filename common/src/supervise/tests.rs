use std::{
    panic::resume_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::*;

/// Panics without the panic hook, which would print a backtrace.
fn panic_with<T>(message: impl Into<String>) -> T {
    resume_unwind(Box::new(message.into()))
}

fn panicked<T>(message: &str) -> Result<T, Failure> {
    Err(Failure::Panicked(message.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_restarting_task_runs_again_on_its_state_after_panics_and_errors_until_it_succeeds() {
    let (failures, begun) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let seen = Arc::clone(&failures);
    let task = restarting_with(
        "test restarts",
        0,
        |run: &mut u32| {
            *run += 1;
            let run = *run;
            async move {
                match run {
                    1 | 2 => panic_with(format!("run {run}")),
                    3 => Err("run 3 failed"),
                    _ => Ok(run),
                }
            }
            .boxed()
        },
        move |failure| seen.lock().unwrap().push(failure.to_string()),
    );
    assert_eq!(task.spawn().await, Ok(4));
    assert_eq!(*failures.lock().unwrap(), ["panicked: run 1", "panicked: run 2", "run 3 failed"]);
    assert_eq!(panics_of("test restarts"), 2);
    // Half of 100, 200 and 400 ms, and at most all of it.
    assert!((350..=700).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_first_await_of_a_restarting_task_is_caught() {
    let task = restarting("test closure", 0, |runs: &mut u32| {
        *runs += 1;
        if *runs == 1 {
            panic_with::<()>("at once");
        }
        async {}.boxed()
    });
    assert_eq!(task.await, Ok(()));
    assert_eq!(panics_of("test closure"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_essential_task_stops_the_process_and_its_handle_returns_why() {
    let failure = |task: BoxFuture<'static, Result<(), &'static str>>| async {
        let stop = CancellationToken::new();
        let handle = essential("test essential", stop.clone(), task).spawn();
        stop.cancelled().await;
        handle.await.unwrap_err()
    };
    let panics = failure(async { panic_with("broken") }.boxed()).await;
    assert_eq!(panics, Failure::Panicked("broken".to_owned()));
    let fails = failure(async { Err("the port is gone") }.boxed()).await;
    assert_eq!(fails.to_string(), "the port is gone");
    let returns = failure(async { Ok(()) }.boxed()).await;
    assert_eq!(returns.to_string(), "returned before the process was told to stop");
    assert_eq!(panics_of("test essential"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_essential_task_that_returns_after_the_stop_has_not_failed() {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = async move {
        stopped.cancelled().await;
        Ok::<_, &str>("drained")
    };
    let handle = essential("test stop", stop.clone(), task).spawn();
    sleep(Duration::from_secs(60)).await;
    assert!(!stop.is_cancelled() && !handle.is_finished());
    stop.cancel();
    assert_eq!(handle.await, Ok("drained"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_isolated_task_is_counted_and_returned_wherever_it_is_spawned() {
    let task = || isolated("test isolated", async { panic_with("broken") });
    let (runtime, tracker, mut set) = (runtime::Handle::current(), TaskTracker::new(), JoinSet::new());
    assert_eq!(task().await, panicked::<()>("broken"));
    assert_eq!(task().spawn().await, panicked::<()>("broken"));
    assert_eq!(task().spawn_on(&runtime).await, panicked::<()>("broken"));
    assert_eq!(task().spawn_in(&tracker).await, panicked::<()>("broken"));
    let _running = task().spawn_in_on(&tracker, &runtime).detach();
    tracker.close();
    tracker.wait().await;
    task().spawn_into(&mut set);
    assert_eq!(set.join_next().await.unwrap().unwrap(), panicked::<()>("broken"));
    assert_eq!(panics_of("test isolated"), 6);
}

#[tokio::test(start_paused = true)]
async fn an_isolated_task_returns_its_result_and_an_error_is_one() {
    assert_eq!(isolated("test results", async { 7 }).spawn().await, Ok(7));
    let fails = isolated("test results", async { Err::<(), _>("no answer") });
    assert_eq!(fails.spawn().await, Ok(Err("no answer")));
    assert_eq!(panics_of("test results"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_aborted_with_its_handle_unless_it_is_detached() {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let task = |answer: &'static str| {
        let sender = sender.clone();
        isolated("test handles", async move {
            sleep(Duration::from_secs(1)).await;
            sender.send(answer).unwrap();
        })
    };
    drop(task("dropped").spawn());
    let aborted = task("aborted").spawn();
    aborted.abort();
    assert_eq!(aborted.await, Err(Failure::Aborted));
    let running = task("detached").spawn().detach();
    drop(sender);
    assert_eq!(receiver.recv().await, Some("detached"));
    assert_eq!(receiver.recv().await, None);
    assert!(running.is_finished());
}

#[tokio::test]
async fn results_and_panics_of_blocking_closures_and_threads_are_returned() {
    assert_eq!(spawn_blocking("test blocking", || 7).await, Ok(7));
    assert_eq!(spawn_blocking("test blocking", || panic_with("broken")).await, panicked::<()>("broken"));
    let name = || std::thread::current().name().map(str::to_owned);
    assert_eq!(spawn_thread("test thread", name).unwrap().await, Ok(Some("test thread".to_owned())));
    let panics = spawn_thread("test thread", || panic_with("broken")).unwrap();
    assert_eq!(panics.await, panicked::<()>("broken"));
    assert_eq!((panics_of("test blocking"), panics_of("test thread")), (1, 1));
}

#[tokio::test]
async fn a_detached_thread_runs_to_its_end() {
    let (sender, ended) = oneshot::channel();
    spawn_thread("test detached", move || sender.send(())).unwrap().detach();
    assert_eq!(ended.await, Ok(()));
}

#[tokio::test]
async fn a_caught_panic_is_an_error_with_its_message() {
    assert_eq!(caught(async { 7 }).await, Ok(7));
    assert_eq!(caught(async { panic_with::<()>("out of range") }).await, Err("out of range".to_owned()));
}
