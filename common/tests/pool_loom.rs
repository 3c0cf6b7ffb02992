//! The pool's hand-written atomics in every order in which two threads can run them. The files are the
//! pool's own, compiled against loom's types.

mod primitives {
    use std::task::Waker;

    pub(super) use loom::sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    };

    pub(super) struct AtomicWaker(loom::future::AtomicWaker);

    impl AtomicWaker {
        pub(super) fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        pub(super) fn register(&self, waker: &Waker) {
            self.0.register_by_ref(waker);
        }

        pub(super) fn wake(&self) {
            self.0.wake();
        }
    }
}

#[path = "../src/pool/atomic/due.rs"]
mod due;
#[path = "../src/pool/atomic/nudge.rs"]
mod nudge;
#[path = "../src/pool/atomic/told.rs"]
mod told;

use std::task::Poll;

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use due::{Due, NEVER};
use nudge::Nudge;
use told::Told;

/// A stand-in for the token.
type Token = Arc<AtomicBool>;

#[test]
fn a_task_is_told_once_and_only_by_its_own_epoch() {
    loom::model(|| {
        let told: Arc<Told<Token>> = Arc::new(Told::new());
        let first = told.begin();
        let others: Vec<_> = [1, 2]
            .into_iter()
            .map(|cause| {
                let told = Arc::clone(&told);
                thread::spawn(move || told.tell(first, cause).is_ok())
            })
            .collect();
        let before = told.cause(first);
        let second = told.begin();
        // However late the orders come, they are not for this task.
        assert_eq!(told.cause(second), 0);
        let reached =
            others.into_iter().map(|other| other.join().unwrap()).filter(|reached| *reached).count();
        assert!(reached <= 1);
        assert!(before == 0 || reached == 1);
        assert_eq!(told.cause(second), 0);
        assert_eq!((told.epoch(), told.cause(first)), (second, 0));
        assert!(told.tell(first, 3).is_err());
        assert!(told.tell(second, 3).is_ok());
        assert_eq!(told.cause(second), 3);
    });
}

#[test]
fn a_token_asked_for_while_the_task_is_told_is_cancelled() {
    loom::model(|| {
        let told: Arc<Told<Token>> = Arc::new(Told::new());
        let epoch = told.begin();
        let other = {
            let told = Arc::clone(&told);
            thread::spawn(move || {
                if let Ok(Some(token)) = told.tell(epoch, 1) {
                    token.store(true, Ordering::Release);
                }
            })
        };
        let token: Token = Arc::new(AtomicBool::new(false));
        if told.ask(epoch, Arc::clone(&token)) {
            token.store(true, Ordering::Release);
        }
        other.join().unwrap();
        assert!(token.load(Ordering::Acquire));
    });
}

#[test]
fn an_old_tasks_token_is_left_alone() {
    loom::model(|| {
        let told: Arc<Told<Token>> = Arc::new(Told::new());
        let token: Token = Arc::new(AtomicBool::new(false));
        let first = told.begin();
        assert!(!told.ask(first, Arc::clone(&token)));
        let second = told.begin();
        let other = {
            let told = Arc::clone(&told);
            thread::spawn(move || told.tell(second, 1).unwrap().is_none())
        };
        assert!(other.join().unwrap());
        assert!(!token.load(Ordering::Acquire));
    });
}

/// A worker enters its deadline and rings; the watch clears, looks and sets what it found. Whatever the
/// order, the watch does not go to sleep beyond the deadline.
#[test]
fn no_deadline_is_slept_through() {
    loom::model(|| {
        let due = Arc::new(Due::new());
        let slot = Arc::new(Mutex::new(NEVER));
        let worker = {
            let (due, slot) = (Arc::clone(&due), Arc::clone(&slot));
            thread::spawn(move || {
                *slot.lock().unwrap() = 5;
                due.no_later_than(5);
            })
        };
        due.clear();
        let seen = *slot.lock().unwrap();
        due.no_later_than(seen);
        worker.join().unwrap();
        assert_eq!(due.get(), 5);
    });
}

#[test]
fn whoever_moves_the_moment_forward_knows_it() {
    loom::model(|| {
        let due = Arc::new(Due::new());
        let other = {
            let due = Arc::clone(&due);
            thread::spawn(move || due.no_later_than(5))
        };
        let moved = due.no_later_than(7);
        let first = other.join().unwrap();
        assert_eq!(due.get(), 5);
        assert!(first, "nobody was told of the earlier moment");
        // The later one only counts if it came first.
        let _ = moved;
    });
}

#[test]
fn a_sleeping_future_is_woken_by_its_nudge() {
    loom::model(|| {
        let nudge = Arc::new(Nudge::new());
        let other = {
            let nudge = Arc::clone(&nudge);
            thread::spawn(move || nudge.set())
        };
        // Hangs, which loom reports, if the nudge comes between the look and the sleep.
        loom::future::block_on(std::future::poll_fn(|cx| {
            if nudge.is_set_or_wakes(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
        }));
        other.join().unwrap();
        nudge.reset();
    });
}
