//! Handlers that start a process for each task.

use std::{io, sync::Arc, time::Duration};

use garenne::{TaskContext, TaskError, layer::Task};
use garenne_common::supervise;
use garenne_protocol::task::ContentType;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    sync::OnceCell,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{Answer, DEFERRAL, output_of},
    handler::{Handler, Ready},
    logs::Logs,
    metrics::Counters,
    process::{Ended, Process},
    settings::HandlerSettings,
};

/// `EX_DATAERR` of sysexits.h.
const REJECTED: i32 = 65;
/// `EX_TEMPFAIL` of sysexits.h.
const RETRY: i32 = 75;
/// How long output is read after the process has exited. Its guardian has closed the pipe then.
const LAST_OUTPUT: Duration = Duration::from_millis(100);
/// `MAX_ARG_STRLEN` of Linux: the most bytes of a variable with its name and a NUL byte.
const LONGEST_VARIABLE: usize = 128 * 1024;
/// The pause between two looks at a program that was missing.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A handler that is a program.
pub(crate) struct Exec {
    name: Arc<str>,
    settings: HandlerSettings,
    max_body: usize,
    grace: Duration,
    ready: Ready,
    counters: OnceCell<Counters>,
}

impl Exec {
    pub(crate) fn new(name: &str, settings: HandlerSettings, max_body: usize, grace: Duration) -> Self {
        let name = name.into();
        Self { ready: Ready::new(&name), name, settings, max_body, grace, counters: OnceCell::new() }
    }

    async fn start(
        &self,
        variables: Vec<(String, String)>,
        logs: &Logs,
    ) -> io::Result<(Process, pipe::Sender, pipe::Receiver)> {
        let (theirs_in, input) = io::pipe()?;
        let (output, theirs_out) = io::pipe()?;
        let order = self.settings.order(variables, vec![0, 1]);
        let input = pipe::Sender::from_owned_fd(input.into())?;
        let output = pipe::Receiver::from_owned_fd(output.into())?;
        let process = Process::start(&order, vec![theirs_in.into(), theirs_out.into()], logs).await?;
        Ok((process, input, output))
    }
}

/// The environment variables of a task.
fn variables(context: &TaskContext, content_type: ContentType) -> Result<Vec<(String, String)>, TaskError> {
    let left = context.deadline().map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
    let trace = context.trace();
    let fields = [
        ("GARENNE_TASK_ID", Some(context.id().to_string())),
        ("GARENNE_TASK_KIND", Some(context.kind().to_string())),
        ("GARENNE_TASK_ATTEMPT", Some(context.attempt().to_string())),
        ("GARENNE_TASK_DEADLINE_MS", Some(left.as_millis().to_string())),
        ("GARENNE_TASK_CONTENT_TYPE", Some(content_type.as_str().to_owned())),
        ("GARENNE_TASK_LANE", context.lane().map(str::to_owned)),
        ("GARENNE_TASK_GROUP", context.group().map(str::to_owned)),
        ("GARENNE_TASK_KEY", context.key().map(str::to_owned)),
        ("TRACEPARENT", trace.as_ref().map(|trace| trace.parent().to_owned())),
        ("TRACESTATE", trace.as_ref().and_then(|trace| trace.state().map(str::to_owned))),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
    fields.map(|(name, value)| variable(name, value)).collect()
}

fn variable(name: &str, value: String) -> Result<(String, String), TaskError> {
    let problem = if value.contains('\0') {
        "it has a NUL byte".to_owned()
    } else if name.len() + "=".len() + value.len() >= LONGEST_VARIABLE {
        format!("it has {} bytes", value.len())
    } else {
        return Ok((name.to_owned(), value));
    };
    let field = name.strip_prefix("GARENNE_TASK_").unwrap_or(name).to_lowercase();
    Err(TaskError::reject(format!("the task's {field} cannot be the environment variable {name}: {problem}")))
}

impl Handler for Exec {
    fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Looks for the program whenever it is missing, until `stopping` is cancelled.
    async fn serve(self: Arc<Self>, counters: Counters, stopping: CancellationToken) {
        let _ = self.counters.set(counters);
        self.ready.set(Ok(()));
        let looking = async {
            let mut ready = self.ready.subscribe();
            while ready.wait_for(Result::is_err).await.is_ok() {
                sleep(CHECK_INTERVAL).await;
                if self.settings.check_program(str::to_owned).is_ok() {
                    self.ready.set(Ok(()));
                }
            }
        };
        stopping.run_until_cancelled(looking).await;
    }

    async fn run(&self, task: Task) -> Answer {
        let Task { context, body, content_type, .. } = task;
        let counters = self.counters.get().expect("it was started before tasks came");
        let logs = Logs::new(&self.name, &counters.cut_lines);
        let started = self.start(variables(&context, content_type)?, &logs).await;
        let (process, mut input, mut output) = match started {
            Ok(started) => started,
            Err(error) => {
                tracing::error!(handler = %self.name, "the handler's process cannot start: {error}");
                self.ready.set(Err(&format!("it cannot start: {error}")));
                return Err(TaskError::snooze(DEFERRAL));
            }
        };
        // A program that does not read its input is no error. It writes while it reads.
        let writing = async move {
            let _ = input.write_all(&body).await;
        };
        let _writing = supervise::isolated("handler-input", writing).spawn();
        let max = self.max_body;
        let mut printed = Vec::new();
        let reading = async {
            let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
            let _ = (&mut output).take(limit).read_to_end(&mut printed).await;
            if printed.len() > max {
                process.kill();
            }
        };
        let mut reading = std::pin::pin!(reading);
        let running = async {
            tokio::select! {
                () = &mut reading => process.ended().await,
                ended = process.ended() => {
                    let _ = timeout(LAST_OUTPUT, &mut reading).await;
                    ended
                }
            }
        };
        let mut running = Box::pin(running);
        let ended = tokio::select! {
            biased;
            ended = &mut running => ended,
            () = context.token().cancelled() => {
                process.terminate();
                let killed = Instant::now() + self.grace * 3 / 4;
                match timeout_at(killed, &mut running).await {
                    Ok(ended) => ended,
                    Err(_) => {
                        process.kill();
                        running.await;
                        return Err(TaskError::interrupted());
                    }
                }
            }
        };
        drop(running);
        if printed.len() > max {
            return Err(TaskError::reject(format!(
                "the output has more than {max} bytes, max_payload allows no more"
            )));
        }
        match ended {
            Ended::Exited(0) => output_of(&printed),
            Ended::Exited(code @ (REJECTED | RETRY)) => {
                let error = match logs.last_line().await {
                    line if line.is_empty() => format!("the handler's process exited with code {code}"),
                    line => line,
                };
                Err(if code == REJECTED { TaskError::reject(error) } else { TaskError::retry(error) })
            }
            ended => {
                if matches!(ended, Ended::OutOfMemory { .. }) {
                    counters.out_of_memory.inc();
                }
                Err(TaskError::retry(logs.after(&format!("the handler's process {ended}")).await))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_no_program_can_be_started_with_is_refused_by_its_name() {
        let key = |value: &str| variable("GARENNE_TASK_KEY", value.to_owned()).map_err(|it| it.to_string());
        assert_eq!(key("gr\u{fc}n\n").unwrap().1, "gr\u{fc}n\n");
        let refused = "the task's key cannot be the environment variable GARENNE_TASK_KEY: it has";
        assert_eq!(key("a\0b").unwrap_err(), format!("{refused} a NUL byte"));
        let longest = LONGEST_VARIABLE - "GARENNE_TASK_KEY=\0".len();
        let with = |value: &str| std::process::Command::new("true").env("GARENNE_TASK_KEY", value).status();
        assert!(with(&key(&"x".repeat(longest)).unwrap().1).unwrap().success());
        assert_eq!(key(&"x".repeat(longest + 1)).unwrap_err(), format!("{refused} {} bytes", longest + 1));
    }
}
