//! Compares servers under typical loads, and measures the cost of a confirmed reading.
//!
//! `cargo bench -p garenne-gateway --bench gateway -- [--json FILE] [--seconds N] [--rounds N] [--amqp-url URL] [--only NAME]`
//!
//! The gateway is a child process, so that its CPU time and memory are measured alone. Without a broker's URL
//! readings are confirmed in memory, which compares the servers. With a URL the cost of a confirmed reading with and
//! without group commit is measured as well, and a gateway with a spool (`--only spool`).

#[path = "gateway/child.rs"]
mod child;
#[path = "gateway/load.rs"]
mod load;
#[path = "gateway/servers.rs"]
mod servers;
#[path = "gateway/spooling.rs"]
mod spooling;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use child::{Backend, Child, PublishMode};
use garenne_bench::{Rows, Usage};
use load::{Load, LoadResult};

/// Minimum duration of the load `fleet`, in which each sensor sends several times.
const MIN_FLEET_TIME: Duration = Duration::from_secs(10);

/// The options.
#[derive(Clone)]
struct Plan {
    json: Option<PathBuf>,
    seconds: Duration,
    rounds: usize,
    amqp_url: Option<String>,
    /// Measure only rows whose names contain this.
    only: Option<String>,
}

impl Plan {
    fn takes(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut plan =
        Plan { json: None, seconds: Duration::from_secs(3), rounds: 3, amqp_url: None, only: None };
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--json", Some(path)) => plan.json = Some(path.into()),
            ("--seconds", Some(seconds)) => {
                plan.seconds = Duration::from_secs(seconds.parse().expect("a number"));
            }
            ("--rounds", Some(rounds)) => plan.rounds = rounds.parse().expect("a number"),
            ("--amqp-url", Some(url)) => plan.amqp_url = Some(url),
            ("--only", Some(only)) => plan.only = Some(only),
            ("--serve", Some(words)) => return child::serve(&words),
            // Cargo passes `--bench`, and a filter meant for other benchmarks.
            _ => {}
        }
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let rows = runtime.block_on(run(&plan));
    rows.publish_to(plan.json.as_deref()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

async fn run(plan: &Plan) -> Rows {
    let mut rows = Rows::default();
    for round in 0..plan.rounds {
        // In turns, so that other activity on the machine affects all servers alike.
        for load in Load::SERVERS {
            for server in servers::ALL {
                if server == servers::Sequential::NAME && !load.ends_connections() {
                    // It would serve the first connection until the end of the load.
                    continue;
                }
                if plan.takes(&format!("{server}/{load}")) {
                    let result = measure(server, &Backend::Memory, load, plan.seconds).await;
                    result.add_to(&mut rows, &format!("gateway/{server}/{load}"));
                }
            }
        }
        for load in [Load::Steady, Load::Http, Load::Pipelined] {
            for (backend, name) in [(Backend::Memory, "open"), (Backend::Scoped, "scoped")] {
                if plan.takes(&format!("scopes/{load}")) {
                    let result = measure("connection-pool", &backend, load, plan.seconds).await;
                    result.add_to(&mut rows, &format!("gateway/scopes/{load}/{name}"));
                }
            }
        }
        if round == 0 && plan.takes("overload") {
            // Long enough to show memory growth.
            let seconds = plan.seconds * 10;
            let result = measure("connection-pool", &Backend::Throttled, Load::Overload, seconds).await;
            result.add_to(&mut rows, "gateway/connection-pool/overload");
            let capacity = f64::from(child::CAPACITY) * result.took.as_secs_f64();
            rows.add(
                "gateway/connection-pool/overload/goodput",
                "of capacity",
                result.receipts as f64 / capacity,
            );
        }
        if let Some(url) = plan.amqp_url.as_deref().filter(|_| plan.takes("spool")) {
            spooling::run(plan, url, &mut rows).await;
        }
        let Some(url) = plan.amqp_url.clone().filter(|_| plan.takes("receipt")) else { continue };
        for (load, mode, name) in [
            (Load::Http, PublishMode::Bare, "bare"),
            (Load::Http, PublishMode::Direct, "direct"),
            (Load::Http, PublishMode::Gathered, "gathered"),
            (Load::Pipelined, PublishMode::Direct, "direct"),
            (Load::Pipelined, PublishMode::Gathered, "gathered"),
        ] {
            let backend = Backend::Broker { url: url.clone(), mode };
            let result = measure("connection-pool", &backend, load, plan.seconds).await;
            result.add_to(&mut rows, &format!("gateway/receipt/{load}/{name}"));
        }
        for server in ["worker-pool", "connection-pool"] {
            let backend = Backend::Broker { url: url.clone(), mode: PublishMode::Gathered };
            let result = measure(server, &backend, Load::Fleet, plan.seconds.max(MIN_FLEET_TIME)).await;
            result.add_to(&mut rows, &format!("gateway/receipt/fleet/{server}"));
        }
    }
    spooling::compare(&mut rows);
    rows
}

async fn measure(server: &str, backend: &Backend, load: Load, seconds: Duration) -> LoadResult {
    let child = Child::start(server, backend);
    let before = Usage::of(child.id()).cpu;
    let mut result = load.run(child.address(), seconds).await;
    let usage = Usage::of(child.id());
    result.cpu = usage.cpu.saturating_sub(before);
    result.rss_mb = usage.peak_mb;
    result
}
