//! Runs histories from seeds until the time is up or one breaks a rule, and then prints that one, shrunk.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use garenne_protocol::topology::BrokerVersion;
use garenne_simulation::{History, Prepared, Scale, run};

/// Runs histories of workers on a simulated broker: each follows from its seed.
#[derive(Parser)]
struct Arguments {
    /// Run the history of this seed only, and print it.
    #[arg(long)]
    seed: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// For how long.
    #[arg(long = "for", default_value = "1m", value_parser = humantime::parse_duration)]
    span: Duration,
    /// The version of the broker: 3.10, 4.0 or 4.3. Without it, histories take turns.
    #[arg(long)]
    broker: Option<BrokerVersion>,
    /// Threads; one for each processor by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Print the whole trace and not only the shrunk one.
    #[arg(long)]
    whole: bool,
    /// Do not shrink the history that breaks a rule.
    #[arg(long)]
    no_shrink: bool,
}

/// The versions that are simulated.
const VERSIONS: [&str; 3] = ["3.10", "4.0", "4.3"];
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);

impl Arguments {
    fn version(&self, seed: u64) -> BrokerVersion {
        self.broker.unwrap_or_else(|| VERSIONS[(seed % 3) as usize].parse().expect("a version"))
    }

    fn history(&self, seed: u64) -> History {
        History::generate(seed, self.version(seed), Scale::default())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let failed = match arguments.seed {
        Some(seed) => {
            let report = run(&Prepared::new(arguments.version(seed)), &arguments.history(seed), true);
            if arguments.whole || !report.has_failed() {
                println!("{report}");
            }
            report.has_failed().then_some(seed)
        }
        None => search(&arguments),
    };
    let Some(seed) = failed else { return ExitCode::SUCCESS };
    if !arguments.no_shrink {
        explain(&arguments, seed);
    }
    ExitCode::FAILURE
}

/// Runs histories until one breaks a rule. Returns its seed.
fn search(arguments: &Arguments) -> Option<u64> {
    let threads = arguments.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, Into::into));
    let (next, done, runs) = (AtomicU64::new(arguments.from), AtomicU64::new(0), AtomicU64::new(0));
    let (failed, stop, began) = (Mutex::new(None), AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let prepared = VERSIONS.map(|version| Prepared::new(version.parse().expect("a version")));
                while !stop.load(Ordering::Relaxed) && began.elapsed() < arguments.span {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let history = arguments.history(seed);
                    let at = VERSIONS.iter().position(|it| it.parse() == Ok(history.version));
                    let report = run(&prepared[at.expect("the version is simulated")], &history, false);
                    runs.fetch_add(report.runs, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                    if report.has_failed() {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.get_or_insert((seed, report.problems));
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut printed = Instant::now();
        while !stop.load(Ordering::Relaxed) && began.elapsed() < arguments.span {
            thread::sleep(Duration::from_millis(100));
            if printed.elapsed() >= PROGRESS {
                printed = Instant::now();
                print_progress(done.load(Ordering::Relaxed), runs.load(Ordering::Relaxed), began.elapsed());
            }
        }
    });
    print_progress(done.into_inner(), runs.into_inner(), began.elapsed());
    let (seed, problems) = failed.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    println!("the history of seed {seed} breaks a rule:");
    problems.iter().for_each(|problem| println!("  {}", problem.lines().next().unwrap_or_default()));
    Some(seed)
}

fn print_progress(done: u64, runs: u64, took: Duration) {
    let rate = done as f64 / took.as_secs_f64();
    let (seconds, hourly) = (took.as_secs(), rate * 3600.0);
    println!("{seconds} s: {done} histories, {runs} handlers, {rate:.1}/s, {hourly:.0}/h");
}

/// Shrinks the history of a seed, and prints what remains.
fn explain(arguments: &Arguments, seed: u64) {
    let prepared = Prepared::new(arguments.version(seed));
    let history = arguments.history(seed);
    println!("shrinking {} steps", history.steps.len());
    let shrunk = history.shrink(|it| run(&prepared, it, false).has_failed());
    println!("\n{} steps of seed {seed} on RabbitMQ {}:", shrunk.steps.len(), shrunk.version);
    for step in &shrunk.steps {
        println!("  {:10.6} {:?}", step.at.as_secs_f64(), step.action);
    }
    println!("\n{}", run(&prepared, &shrunk, true));
}
