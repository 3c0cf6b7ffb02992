//! Checks the pool's atomics in every interleaving of two or three threads. The files are the pool's own, compiled
//! against loom's types.

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

#[path = "../src/atomic/cancel_state.rs"]
mod cancel_state;
#[path = "../src/atomic/next_deadline.rs"]
mod next_deadline;
#[path = "../src/atomic/wake_flag.rs"]
mod wake_flag;

use std::task::Poll;

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use cancel_state::CancelState;
use next_deadline::{NONE, NextDeadline};
use wake_flag::WakeFlag;

/// Stands in for a cancellation token.
type Token = Arc<AtomicBool>;

#[test]
fn a_task_is_cancelled_once_and_only_in_its_own_epoch() {
    loom::model(|| {
        let state: Arc<CancelState<Token>> = Arc::new(CancelState::new());
        let first = state.begin();
        let others: Vec<_> = [1, 2]
            .into_iter()
            .map(|cause| {
                let state = Arc::clone(&state);
                thread::spawn(move || state.cancel(first, cause).is_ok())
            })
            .collect();
        let before = state.cause(first);
        let second = state.begin();
        // A cancellation of the first task never reaches the second, however late it comes.
        assert_eq!(state.cause(second), 0);
        let cancelled = others.into_iter().map(|other| other.join().unwrap()).filter(|cancelled| *cancelled);
        let cancelled = cancelled.count();
        assert!(cancelled <= 1);
        assert!(before == 0 || cancelled == 1);
        assert_eq!(state.cause(second), 0);
        assert_eq!((state.epoch(), state.cause(first)), (second, 0));
        assert!(state.cancel(first, 3).is_err());
        assert!(state.cancel(second, 3).is_ok());
        assert_eq!(state.cause(second), 3);
        assert_eq!(state.epoch(), second);
        // The first cause stays.
        assert!(state.cancel(second, 1).is_err());
        assert_eq!(state.cause(second), 3);
    });
}

#[test]
fn a_token_registered_during_a_cancellation_is_cancelled() {
    loom::model(|| {
        let state: Arc<CancelState<Token>> = Arc::new(CancelState::new());
        let epoch = state.begin();
        let other = {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                if let Ok(Some(token)) = state.cancel(epoch, 1) {
                    token.store(true, Ordering::Release);
                }
            })
        };
        let token: Token = Arc::new(AtomicBool::new(false));
        if state.register(epoch, Arc::clone(&token)) {
            token.store(true, Ordering::Release);
        }
        other.join().unwrap();
        assert!(token.load(Ordering::Acquire));
    });
}

#[test]
fn a_cancellation_leaves_the_token_of_an_earlier_task_alone() {
    loom::model(|| {
        let state: Arc<CancelState<Token>> = Arc::new(CancelState::new());
        let token: Token = Arc::new(AtomicBool::new(false));
        let first = state.begin();
        assert!(!state.register(first, Arc::clone(&token)));
        let second = state.begin();
        let other = {
            let state = Arc::clone(&state);
            thread::spawn(move || state.cancel(second, 1).unwrap().is_none())
        };
        assert!(other.join().unwrap());
        assert!(!token.load(Ordering::Acquire));
    });
}

#[test]
fn a_context_that_outlives_its_task_does_not_replace_the_token_of_the_next_one() {
    loom::model(|| {
        let state: CancelState<Token> = CancelState::new();
        let first = state.begin();
        let second = state.begin();
        let token: Token = Arc::new(AtomicBool::new(false));
        assert!(!state.register(second, Arc::clone(&token)));
        assert!(!state.register(first, Arc::new(AtomicBool::new(false))));
        let found = state.cancel(second, 1).unwrap().expect("the token was registered");
        assert!(Arc::ptr_eq(&found, &token));
        assert!(state.register(second, token));
    });
}

/// A worker sets its deadline and wakes the timer; the timer clears its deadline, looks for due work and sets the
/// next deadline. In no interleaving does the timer sleep past the worker's deadline.
#[test]
fn the_timer_does_not_sleep_past_a_deadline() {
    loom::model(|| {
        let next = Arc::new(NextDeadline::new());
        let deadline = Arc::new(Mutex::new(NONE));
        let worker = {
            let (next, deadline) = (Arc::clone(&next), Arc::clone(&deadline));
            thread::spawn(move || {
                *deadline.lock().unwrap() = 5;
                next.lower_to(5);
            })
        };
        next.clear();
        let seen = *deadline.lock().unwrap();
        next.lower_to(seen);
        worker.join().unwrap();
        assert_eq!(next.get(), 5);
    });
}

#[test]
fn the_thread_that_lowers_the_deadline_is_told_to_wake_the_timer() {
    loom::model(|| {
        let next = Arc::new(NextDeadline::new());
        let other = {
            let next = Arc::clone(&next);
            thread::spawn(move || next.lower_to(5))
        };
        // True only if it came first.
        let later = next.lower_to(7);
        let earlier = other.join().unwrap();
        assert_eq!(next.get(), 5);
        assert!(earlier, "no thread was told to wake the timer");
        assert!(!next.lower_to(5) && !next.lower_to(6) && next.lower_to(4));
        next.clear();
        assert_eq!(next.get(), NONE);
        let _ = later;
    });
}

#[test]
fn of_two_threads_that_set_one_deadline_one_wakes_the_timer() {
    loom::model(|| {
        let next = Arc::new(NextDeadline::new());
        let other = {
            let next = Arc::clone(&next);
            thread::spawn(move || next.lower_to(5))
        };
        let own = next.lower_to(5);
        assert!(own != other.join().unwrap());
    });
}

#[test]
fn a_sleeping_future_is_woken_by_its_flag() {
    loom::model(|| {
        let flag = Arc::new(WakeFlag::new());
        let other = {
            let flag = Arc::clone(&flag);
            thread::spawn(move || flag.set())
        };
        // Hangs, which loom reports, if a `set` between the check and the sleep is missed.
        loom::future::block_on(std::future::poll_fn(|cx| {
            if flag.register_and_check(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
        }));
        other.join().unwrap();
        flag.reset();
        assert!(!flag.register_and_check(std::task::Waker::noop()));
    });
}
