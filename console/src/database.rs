//! `garenne database`: the tables of the sink `postgres`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueHint};
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
};
use garenne_database::{
    DatabaseError, ErrorKind, PostgresPool, Tables, prune,
    retention::{Expired, ExpiredRows, Retention, SeriesTable},
    schema,
};
use garenne_operator::{operator::Operator, output, waits};
use garenne_protocol::sensor::Timestamp;

/// How long another program that is changing the tables is waited for.
const MIGRATION_WAIT: Duration = Duration::from_secs(600);

/// `garenne database …`.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArgs {
    /// The workers' database, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL", global = true)]
    pub postgres_url: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub verb: DatabaseVerb,
}

/// What `garenne database` does.
#[derive(Clone, Debug, Subcommand)]
pub enum DatabaseVerb {
    /// Create the tables, change them to the version that this program needs, or create what is missing; as their owner
    #[command(
        after_help = "Examples:\n  garenne database migrate --postgres-url postgres://owner@db/garenne\n  \
                            garenne database migrate --grant-to garenne_worker"
    )]
    Migrate {
        /// A role that gets what a worker needs: to read and write rows, and to add partitions
        #[arg(long, value_name = "ROLE")]
        grant_to: Option<String>,
    },
    /// Check the version, the columns, the partitions and the rollups; exits with 1 if something is wrong
    #[command(after_help = "Example:\n  garenne database check --postgres-url postgres://garenne@db/garenne")]
    Check,
    /// Remove readings and results that a policy no longer keeps; as the tables' owner
    #[command(after_help = "Examples:\n  garenne database prune retention.toml --dry-run\n  \
                            garenne database prune retention.toml")]
    Prune {
        /// The policy, TOML
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        policy: PathBuf,
        /// Only print what would go
        #[arg(long)]
        dry_run: bool,
    },
}

/// Runs the command.
pub async fn run(operator: &Operator, args: &DatabaseArgs) -> Result<Exit, Failure> {
    let (pool, tables) = operator.database()?;
    waits::begin(format!("an answer of the database at {}", pool.address()));
    let failed = |error: DatabaseError| {
        Failure::new(Exit::Failed, format!("cannot use Postgres at {}: {error}", pool.address()))
    };
    match &args.verb {
        DatabaseVerb::Migrate { grant_to } => {
            reach(&pool).await.map_err(failed)?;
            waits::unlimited();
            migrate(&pool, &tables).await.map_err(failed)?;
            if let Some(role) = grant_to {
                schema::grant(&pool, &tables, role).await.map_err(failed)?;
                output::lines(&format!("granted to {role}: rows of {tables}_*, and adding partitions\n"))?;
            }
            Ok(Exit::Done)
        }
        DatabaseVerb::Check => {
            reach(&pool).await.map_err(failed)?;
            let problems = schema::check(&pool, &tables).await.map_err(failed)?;
            if problems.is_empty() {
                output::lines(&format!("the tables {tables}_* have version {}\n", schema::VERSION))?;
                return Ok(Exit::Done);
            }
            output::lines(&problems.iter().map(|problem| format!("{problem}\n")).collect::<String>())?;
            Ok(Exit::Failed)
        }
        DatabaseVerb::Prune { policy, dry_run } => {
            let invalid =
                |problem: String| Failure::new(Exit::Config, format!("{}: {problem}", policy.display()));
            let text = std::fs::read_to_string(policy).map_err(|error| invalid(error.to_string()))?;
            let retention = Retention::parse(&text).map_err(invalid)?;
            reach(&pool).await.map_err(failed)?;
            waits::unlimited();
            let failing = match dry_run {
                true => prune::failing(&pool, &tables).await,
                false => prune::roll_up(&pool, &tables).await,
            };
            for series in failing.map_err(failed)? {
                output::note(format_args!("{series}; its readings from that time on are kept"));
            }
            let expired = retention.expired(&pool, &tables).await.map_err(failed)?;
            if expired.is_empty() {
                output::lines("nothing to remove\n")?;
            }
            let mut exit = Exit::Done;
            for expired in &expired {
                let line = describe(expired);
                if *dry_run {
                    output::lines(&format!("would remove {line}\n"))?;
                } else {
                    let removed = match prune::remove(&pool, &tables, expired).await {
                        Ok(removed) => removed,
                        Err(error) if error.kind == ErrorKind::Transient => return Err(failed(error)),
                        // A trigger or a key of the user refuses these rows. The others are not to blame.
                        Err(error) => {
                            output::note(format_args!("failed to remove {line}: {error}"));
                            exit = Exit::Failed;
                            continue;
                        }
                    };
                    let verb = if removed.is_some() { "removed" } else { "kept" };
                    let rows = removed.unwrap_or(expired.rows);
                    output::lines(&format!(
                        "{verb} {}
",
                        describe(&Expired { rows, ..expired.clone() })
                    ))?;
                    if removed.is_none_or(|rows| rows < expired.rows) {
                        output::note(
                            "the others are kept until their rollups are computed; run the command again",
                        );
                    }
                }
            }
            Ok(exit)
        }
    }
}

/// Waits for an answer of the database, before statements that may take any time. Ends with the limit of the command.
async fn reach(pool: &PostgresPool) -> Result<(), DatabaseError> {
    let answer = async || pool.client().await?.simple_query("").await.map_err(DatabaseError::from);
    while_transient(Duration::MAX, answer).await.map(drop)
}

/// Repeats an attempt that fails with a transient error, and prints each error. The last attempt starts within `limit`.
async fn while_transient<T>(
    limit: Duration,
    attempt: impl AsyncFn() -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
    let began = std::time::Instant::now();
    let mut backoff = Backoff::default();
    loop {
        match attempt().await {
            Err(error) if error.kind == ErrorKind::Transient && began.elapsed() < limit => {
                let wait = backoff.next_wait();
                output::note(format_args!("{error}; again in {wait:.1?}"));
                tokio::time::sleep(wait).await;
            }
            outcome => return outcome,
        }
    }
}

/// Changes the tables, and prints each script. Waits for another program that does.
async fn migrate(pool: &PostgresPool, tables: &Tables) -> Result<(), DatabaseError> {
    let applied = |script: &str| output::note(format_args!("applied {script}"));
    let migrated =
        while_transient(MIGRATION_WAIT, async || schema::migrate(pool, tables, applied).await).await?;
    for repaired in &migrated.repaired {
        output::note(repaired);
    }
    if migrated.repaired.iter().any(|repaired| repaired.starts_with("created table")) {
        output::note("repeat --grant-to for the roles of workers, which have no rights to new tables");
    }
    let version = schema::VERSION;
    output::note(match migrated.applied.len() {
        0 if !migrated.repaired.is_empty() => {
            format!("the tables {tables}_* have version {version}: repaired")
        }
        0 => format!("the tables {tables}_* have version {version}: nothing to do"),
        scripts => {
            format!("the tables {tables}_* have version {version}, from {}: {scripts} scripts", migrated.from)
        }
    });
    Ok(())
}

fn describe(expired: &Expired) -> String {
    let rows = expired.rows;
    match &expired.what {
        ExpiredRows::Partition { name, .. } => format!("partition {name}, {rows} readings"),
        ExpiredRows::Series { table, device, metric, before } => {
            let what = match table {
                SeriesTable::Readings => "readings",
                SeriesTable::Hours => "hourly rollups",
                SeriesTable::Days => "daily rollups",
            };
            format!("{rows} {what} of {device} {metric} before {}", Timestamp::from(*before))
        }
        ExpiredRows::Results { before } => format!("{rows} results before {}", Timestamp::from(*before)),
    }
}
