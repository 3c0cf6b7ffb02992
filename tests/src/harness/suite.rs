//! Records of the whole suite: how long each test took, and which tests were left out for which reason. A watchdog ends
//! tests that hang.
//!
//! `./dev test` sets the files of both records in environment variables and prints a summary at its end.

use std::{
    collections::HashMap,
    env,
    fmt::Display,
    fs::OpenOptions,
    io::Write,
    panic::Location,
    process,
    sync::{Mutex, Once, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// The variable with the file to which each left-out test appends its name and the reason.
const LEFT_OUT_FILE: &str = "GARENNE_TEST_LEFT_OUT";

/// The variable with the file to which each test appends its duration in seconds and its name.
const TIMES_FILE: &str = "GARENNE_TEST_TIMES";

/// Maximum duration of one test, unless the full suite runs.
const MAX_TEST_TIME: Duration = Duration::from_secs(20 * 60);

/// Interval between two checks of the watchdog.
const WATCHDOG_INTERVAL: Duration = Duration::from_secs(5);

/// The running tests by their threads.
static RUNNING: Mutex<Option<HashMap<ThreadId, (String, Instant)>>> = Mutex::new(None);

thread_local! {
    /// Dropped at the end of the thread that the test runner started for a test.
    static TIMED: TimedTest = TimedTest::start();
}

/// Whether the full suite runs: `./dev test --full`.
#[must_use]
pub fn is_full() -> bool {
    env::var_os("GARENNE_TEST_FULL").is_some()
}

/// The seed of a randomized test: `GARENNE_TEST_SEED` if it is set, else a random seed in the full suite and `fixed`
/// otherwise. It is printed, so that a failure can be repeated.
pub fn seed(fixed: u64) -> Result<u64> {
    let seed = match env::var("GARENNE_TEST_SEED") {
        Ok(given) => given.parse().with_context(|| format!("GARENNE_TEST_SEED={given}"))?,
        Err(_) if is_full() => rand::random(),
        Err(_) => fixed,
    };
    println!("GARENNE_TEST_SEED={seed} repeats this run");
    Ok(seed)
}

/// Records that the running test is left out on this machine. For the test runner it passes, because the runner cannot
/// skip a test at run time; the summary of `./dev test` lists it.
#[track_caller]
pub fn leave_out(reason: impl Display) {
    let test = test_name().unwrap_or_else(|| Location::caller().to_string());
    eprintln!("left out: {reason}");
    append(LEFT_OUT_FILE, &format!("{test}: {reason}"));
}

/// Starts the clock of the test on this thread, unless it runs already. Every function that starts a server calls it.
pub fn time_this_test() {
    TIMED.with(|_| ());
}

/// The test runner names each test's thread after the test.
fn test_name() -> Option<String> {
    thread::current().name().filter(|&name| name != "main" && !name.starts_with("tokio")).map(str::to_owned)
}

fn append(variable: &str, line: &str) {
    let Some(file) = env::var_os(variable) else { return };
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        // One write, so that lines of several processes do not mix.
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = written {
        eprintln!("cannot write to {}: {error}", file.display());
    }
}

fn with_running<T>(change: impl FnOnce(&mut HashMap<ThreadId, (String, Instant)>) -> T) -> T {
    change(RUNNING.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

struct TimedTest {
    thread: ThreadId,
    name: Option<String>,
    began: Instant,
}

impl TimedTest {
    fn start() -> Self {
        let (thread, name, began) = (thread::current().id(), test_name(), Instant::now());
        if let Some(name) = &name {
            with_running(|running| running.insert(thread, (name.clone(), began)));
            start_watchdog();
        }
        Self { thread, name, began }
    }
}

impl Drop for TimedTest {
    fn drop(&mut self) {
        with_running(|running| running.remove(&self.thread));
        if let Some(name) = &self.name {
            append(TIMES_FILE, &format!("{:.1} {name}", self.began.elapsed().as_secs_f64()));
        }
    }
}

/// Ends the process when a test takes too long. Otherwise, a hang would be noticed only at the timeout of the whole
/// run, without the name of the test.
fn start_watchdog() {
    static STARTED: Once = Once::new();
    if is_full() {
        return;
    }
    STARTED.call_once(|| {
        thread::spawn(|| {
            loop {
                thread::sleep(WATCHDOG_INTERVAL);
                if let Some(name) = with_running(|running| overdue(running, Instant::now())) {
                    eprintln!("test {name} did not end within {MAX_TEST_TIME:?}");
                    // The cleanup shells remove the servers.
                    process::exit(1);
                }
            }
        });
    });
}

fn overdue(running: &HashMap<ThreadId, (String, Instant)>, now: Instant) -> Option<String> {
    let late = running.values().find(|(_, began)| now.duration_since(*began) > MAX_TEST_TIME);
    late.map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_test_beyond_the_limit_is_overdue() {
        let (thread, began) = (thread::current().id(), Instant::now());
        let running = HashMap::from([(thread, ("slow".to_owned(), began))]);
        assert_eq!(overdue(&running, began + MAX_TEST_TIME), None);
        let late = began + MAX_TEST_TIME + Duration::from_secs(1);
        assert_eq!(overdue(&running, late).as_deref(), Some("slow"));
    }

    #[test]
    fn a_test_runs_under_its_name_until_its_thread_ends() {
        let timed = thread::Builder::new().name("suite::timed".to_owned()).spawn(|| {
            time_this_test();
            let id = thread::current().id();
            assert_eq!(
                with_running(|running| running.get(&id).map(|it| it.0.clone())),
                Some("suite::timed".to_owned())
            );
            id
        });
        let id = timed.unwrap().join().unwrap();
        assert!(with_running(|running| !running.contains_key(&id)));
    }
}
