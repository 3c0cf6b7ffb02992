//! The context of a task, and the conversions of its ending.

use std::{sync::Arc, time::Duration};

use garenne_pool::{
    Cause, Ending, GroupName, OnEnd, Outcome, Pool, Run, Spec, Stop, Task, TaskContext, TaskId,
};
use tokio::{runtime, sync::mpsc, time::Instant};

use crate::test_pool::config;

/// Sends its context out of the pool.
struct SendContext(mpsc::UnboundedSender<TaskContext>, bool);

impl Task for SendContext {
    type Output = ();

    async fn run(self, cx: TaskContext) {
        let Self(sender, wait) = self;
        sender.send(cx).unwrap();
        if wait {
            std::future::pending::<()>().await;
        }
    }
}

fn pool() -> Pool<SendContext, ()> {
    Pool::start(config(4, 1..=1), runtime::Handle::current()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_short_task_has_no_deadline_no_cause_and_a_token_that_is_never_cancelled() {
    let (sender, mut contexts) = mpsc::unbounded_channel();
    let pool = pool();
    pool.submit(Spec::short("a"), SendContext(sender, false), ()).unwrap().wait().await;
    let cx = contexts.recv().await.unwrap();
    assert_eq!((cx.id(), cx.shard(), cx.width()), (&TaskId::from("a"), 0, 1));
    assert_eq!((cx.deadline(), cx.cause(), cx.token().is_cancelled()), (None, None, false));
    let part = TaskContext::short("part");
    assert_eq!((part.id().to_string(), part.shard(), part.width()), ("part".to_owned(), 0, 1));
    assert!(std::ptr::eq(cx.token(), part.token()));
}

#[tokio::test(start_paused = true)]
async fn a_long_task_knows_its_deadline_and_why_it_was_cancelled() {
    let (sender, mut contexts) = mpsc::unbounded_channel();
    let pool = pool();
    let causes = [
        (Spec::long("default"), 30, Cause::Deadline),
        (Spec::long("own").deadline(Duration::from_secs(5)), 5, Cause::Deadline),
        (Spec::long("stopped"), 30, Cause::Stopped),
        (Spec::long("shutdown"), 30, Cause::Shutdown),
    ];
    for (spec, seconds, cause) in causes {
        let begun = Instant::now();
        let handle = pool.submit(spec, SendContext(sender.clone(), true), ()).unwrap();
        let cx = contexts.recv().await.unwrap();
        assert_eq!(cx.deadline(), Some(begun + Duration::from_secs(seconds)));
        assert_eq!((cx.cause(), cx.token().is_cancelled()), (None, false));
        match cause {
            Cause::Deadline => {}
            Cause::Stopped => assert!(handle.stop()),
            Cause::Shutdown => pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) }),
        }
        assert_eq!(cx.cancelled().await, cause);
        assert_eq!((cx.cause(), cx.token().is_cancelled()), (Some(cause), true));
        assert_eq!(handle.wait().await, Outcome::GaveUp { cause, stuck: false });
    }
}

#[tokio::test(start_paused = true)]
async fn a_context_that_outlives_its_task_is_not_cancelled_with_a_later_one() {
    let (sender, mut contexts) = mpsc::unbounded_channel();
    let pool = pool();
    pool.submit(Spec::long("first"), SendContext(sender.clone(), false), ()).unwrap().wait().await;
    let first = contexts.recv().await.unwrap();
    let token = first.token().clone();
    let second = pool.submit(Spec::long("second"), SendContext(sender, true), ()).unwrap();
    contexts.recv().await.unwrap().token().clone().cancelled().await;
    second.wait().await;
    assert_eq!((first.cause(), token.is_cancelled()), (None, false));
}

#[tokio::test(start_paused = true)]
async fn timeouts_of_any_length_are_allowed() {
    let mut settings = config(4, 1..=4);
    settings.idle_timeout = Duration::MAX;
    settings.default_deadline = Duration::MAX;
    settings.grace = Duration::MAX;
    let (sender, mut contexts) = mpsc::unbounded_channel();
    let pool = Pool::start(settings, runtime::Handle::current()).unwrap();
    let handles = [
        pool.submit(Spec::long("a"), SendContext(sender.clone(), true), ()).unwrap(),
        pool.submit(Spec::long("b").deadline(Duration::MAX), SendContext(sender.clone(), true), ()).unwrap(),
        pool.submit(Spec::long("c"), SendContext(sender, false), ()).unwrap(),
    ];
    for _ in 0..3 {
        contexts.recv().await.unwrap();
    }
    handles[2].wait().await;
    assert!(handles[0].stop());
    pool.begin_shutdown(Stop::SoftTimeout { timeout: Duration::MAX, grace: Duration::MAX });
    pool.begin_shutdown(Stop::Hard { grace: Duration::MAX });
    pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    assert_eq!(pool.stopped().await.interrupted, 2);
}

#[test]
fn endings_are_mapped_and_reduced_to_outcomes() {
    let message = || "why".to_owned();
    let cause = Cause::Stopped;
    let all = [
        (
            Ending::Finished { output: 2, cancelled_by: Some(cause) },
            Outcome::Finished { cancelled_by: Some(cause) },
        ),
        (Ending::Panicked { message: message() }, Outcome::Panicked { message: Arc::from("why") }),
        (Ending::GaveUp { cause, stuck: true }, Outcome::GaveUp { cause, stuck: true }),
        (Ending::NotStarted { cause }, Outcome::NotStarted { cause }),
    ];
    for (ending, outcome) in all {
        assert_eq!(ending.outcome(), outcome);
        let mapped = ending.clone().map(|output| output * 2);
        assert_eq!(mapped.outcome(), outcome);
        if let Ending::Finished { output, .. } = mapped {
            assert_eq!(output, 4);
        }
    }
}

#[test]
fn specs_and_names_hold_what_they_are_given() {
    let spec = Spec::short("a").group("g").width(3).deadline(Duration::from_secs(1)).on_threads();
    assert_eq!((spec.id, spec.group, spec.width), ("a".into(), Some("g".into()), 3));
    assert_eq!(spec.run, Run::Long { deadline: Some(Duration::from_secs(1)) });
    assert_eq!(spec.placement, garenne_pool::Placement::Threads);
    let ids = [TaskId::from("7"), "7".to_owned().into(), Arc::<str>::from("7").into(), TaskId::number(7)];
    for id in &ids {
        assert_eq!((id.to_string(), format!("{id:?}")), ("7".to_owned(), "7".to_owned()));
        assert_eq!(serde_json::to_value(id).unwrap(), "7");
    }
    assert_ne!(ids[0], ids[3]);
    for group in [GroupName::from("g"), "g".to_owned().into(), Arc::<str>::from("g").into()] {
        assert_eq!((group.as_str(), group.to_string(), format!("{group:?}")), ("g", "g".into(), "g".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn on_end_receives_the_ending() {
    let (sender, mut endings) = mpsc::unbounded_channel();
    let (contexts, _contexts) = mpsc::unbounded_channel();
    let pool = Pool::start(config(4, 1..=1), runtime::Handle::current()).unwrap();
    let on_end = OnEnd(move |ending| drop(sender.send(ending)));
    pool.submit_detached(Spec::short("a"), SendContext(contexts, false), on_end).unwrap();
    assert_eq!(endings.recv().await, Some(Ending::Finished { output: (), cancelled_by: None }));
}
