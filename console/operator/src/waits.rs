//! What a command waits for, and for how long.
//!
//! A broker that blocks publishers, or a server whose machine is frozen, answers nothing, and no error says so. A command
//! that makes no progress for a while therefore ends with what it waited for.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_amqp::Publisher;
use garenne_common::{
    exit::{Exit, Failure},
    lock::lock,
};
use tokio::{
    select, task_local,
    time::{Instant, sleep_until},
};

task_local! {
    static WAIT: Arc<Mutex<Wait>>;
}

/// The present wait of a command.
struct Wait {
    /// Says what it waits for, as of the moment of the call.
    what: Box<dyn Fn() -> String + Send>,
    /// The last progress. In the future if the command knows that it waits until then.
    since: Instant,
}

/// Longer than any command runs.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);

/// Runs a command, and ends it if it makes no progress for `limit`. `first` is what it waits for at first. The error
/// [`Exit::BrokerUnavailable`] says what it waited for in the end.
pub async fn limited(
    limit: Duration,
    first: String,
    command: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let limit = limit.min(UNLIMITED);
    let what = Box::new(move || first.clone());
    let wait = Arc::new(Mutex::new(Wait { what, since: Instant::now() }));
    let watched = Arc::clone(&wait);
    let expired = async move {
        let mut check = Instant::now() + limit;
        loop {
            sleep_until(check).await;
            let (now, wait) = (Instant::now(), lock(&watched));
            if wait.since + limit <= now {
                return (wait.what)();
            }
            // A wait that begins meanwhile may end earlier.
            check = (wait.since + limit).min(now + limit);
        }
    };
    select! {
        biased;
        ended = WAIT.scope(wait, command) => ended,
        what = expired => {
            let limit = humantime::format_duration(limit);
            Err(Failure::new(Exit::BrokerUnavailable, format_args!("no progress for {limit} (--timeout): waited for {what}")))
        }
    }
}

fn change(change: impl FnOnce(&mut Wait)) {
    // Programs without a limit, such as the dashboard, are not in a scope.
    let _ = WAIT.try_with(|wait| change(&mut lock(wait)));
}

/// The command waits for this from now on.
pub fn begin(what: impl fmt::Display + Send + 'static) {
    begin_with(move || what.to_string());
}

/// As [`begin`]; `what` is called if the wait takes too long.
fn begin_with(what: impl Fn() -> String + Send + 'static) {
    change(|wait| *wait = Wait { what: Box::new(what), since: Instant::now() });
}

/// The command waits for the broker's confirm of a message.
pub fn begin_confirm(publisher: &Publisher, of: &'static str) {
    let publisher = publisher.clone();
    begin_with(move || match publisher.is_blocked() {
        true => format!(
            "the end of an alarm of the broker, which blocks publishers (memory or disk), and the confirm of {of}"
        ),
        false => format!("the broker's confirm of {of}"),
    });
}

/// The command got what it waited for, or a part of it.
pub fn progress() {
    change(|wait| wait.since = wait.since.max(Instant::now()));
}

/// The command waits until then by itself.
pub fn pause_until(until: Instant) {
    change(|wait| wait.since = wait.since.max(until));
}

/// The wait that follows may take any time, such as a statement of a database. [`begin`] ends it.
pub fn unlimited() {
    pause_until(Instant::now() + UNLIMITED);
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_command_without_progress_ends_with_what_it_waited_for() {
        let began = Instant::now();
        let ended = limited(LIMIT, "a first answer".to_owned(), async {
            sleep(LIMIT / 2).await;
            begin("a second answer");
            sleep(LIMIT * 5).await;
            Ok(Exit::Done)
        });
        let failure = ended.await.unwrap_err();
        assert_eq!(failure.exit, Exit::BrokerUnavailable);
        assert_eq!(failure.line, "no progress for 10s (--timeout): waited for a second answer");
        assert_eq!(began.elapsed(), LIMIT * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_pauses_and_waits_without_a_limit_are_no_reason_to_end() {
        let ended = limited(LIMIT, "a first answer".to_owned(), async {
            begin("records");
            for _ in 0..5 {
                sleep(LIMIT * 3 / 4).await;
                progress();
            }
            pause_until(Instant::now() + LIMIT * 9);
            sleep(LIMIT * 9).await;
            unlimited();
            sleep(LIMIT * 50).await;
            begin("the end");
            Ok(Exit::Done)
        });
        assert_eq!(ended.await, Ok(Exit::Done));
    }
}
