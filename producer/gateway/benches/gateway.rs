//! The gateway's servers under the loads that sensors make, and what a receipt costs.
//!
//! `cargo bench -p garenne-gateway --bench gateway -- [--json FILE] [--seconds N] [--rounds N] [--amqp-url URL] [--only NAME]`
//!
//! The gateway is a process of its own, so that its processor time and memory are its own. Without a
//! broker's URL receipts come from memory: the servers are compared, not the broker. With one, what a
//! receipt costs with and without group commit is measured as well.

#[path = "gateway/child.rs"]
mod child;
#[path = "gateway/load.rs"]
mod load;
#[path = "gateway/servers.rs"]
mod servers;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use child::{Child, How, Outlet};
use garenne_bench::{Rows, Usage};
use load::{Load, Seen};

/// The least that a fleet of sensors is looked at for.
const MANY_BEATS: Duration = Duration::from_secs(10);

/// What to measure, and for how long.
#[derive(Clone)]
struct Plan {
    json: Option<PathBuf>,
    seconds: Duration,
    rounds: usize,
    amqp_url: Option<String>,
    /// Only rows with this in their names.
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
            // Cargo says `--bench`; names of other benches are none of ours.
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
        // In turns, so that whatever else the machine does meets each alike.
        for load in Load::SERVERS {
            for server in servers::ALL {
                if server == servers::Sequential::NAME && !load.ends_connections() {
                    // One connection for ever, and the others never: nothing to be measured.
                    continue;
                }
                if plan.takes(&format!("{server}/{load}")) {
                    let seen = measure(server, &Outlet::Memory, load, plan.seconds).await;
                    seen.add_to(&mut rows, &format!("gateway/{server}/{load}"));
                }
            }
        }
        if round == 0 && plan.takes("overload") {
            // Long enough for whatever grows to be seen growing.
            let seconds = plan.seconds * 10;
            let seen = measure("connection-pool", &Outlet::Throttled, Load::Overload, seconds).await;
            seen.add_to(&mut rows, "gateway/connection-pool/overload");
            let capacity = f64::from(child::CAPACITY) * seen.took.as_secs_f64();
            rows.add(
                "gateway/connection-pool/overload/goodput",
                "of capacity",
                seen.receipts as f64 / capacity,
            );
        }
        let Some(url) = plan.amqp_url.clone().filter(|_| plan.takes("receipt")) else { continue };
        for (load, how, name) in [
            (Load::Http, How::Bare, "bare"),
            (Load::Http, How::Direct, "direct"),
            (Load::Http, How::Gathered, "gathered"),
            (Load::Pipelined, How::Direct, "direct"),
            (Load::Pipelined, How::Gathered, "gathered"),
        ] {
            let outlet = Outlet::Broker { url: url.clone(), how };
            let seen = measure("connection-pool", &outlet, load, plan.seconds).await;
            seen.add_to(&mut rows, &format!("gateway/receipt/{load}/{name}"));
        }
        for server in ["worker-pool", "connection-pool"] {
            let outlet = Outlet::Broker { url: url.clone(), how: How::Gathered };
            // Each sensor sends a few times.
            let seen = measure(server, &outlet, Load::Fleet, plan.seconds.max(MANY_BEATS)).await;
            seen.add_to(&mut rows, &format!("gateway/receipt/fleet/{server}"));
        }
    }
    rows
}

async fn measure(server: &str, outlet: &Outlet, load: Load, seconds: Duration) -> Seen {
    let child = Child::start(server, outlet);
    let before = Usage::of(child.id()).cpu;
    let mut seen = load.run(child.address(), seconds).await;
    let usage = Usage::of(child.id());
    seen.cpu = usage.cpu.saturating_sub(before);
    seen.rss_mb = usage.peak_mb;
    seen
}
