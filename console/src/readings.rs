//! `garenne readings`: works on the readings that workers have stored in Postgres.

mod age;
mod cli;
mod correcting;
mod correction;
mod corrections;
mod device_task;
mod page;
mod recalibration;
mod report;
mod row;
mod selection;
mod stored;

use std::{path::Path, pin::pin};

use garenne_common::exit::{Exit, Failure};
use garenne_operator::{interrupt::Interrupts, operator::Operator, output, waits};
use garenne_protocol::task::TaskId;
use garenne_readings::Calibration;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use cli::ReadingsVerb;
use cli::{CorrectArgs, RecalibrateArgs};
use correcting::{Corrected, Correcting};
use correction::Correction;
use recalibration::Recalibration;
use report::Report;

use crate::audit_log::{audited, command_line};

/// Runs `garenne readings …`.
pub async fn run(operator: &Operator, verb: ReadingsVerb) -> Result<Exit, Failure> {
    match verb {
        ReadingsVerb::Latest(args) => {
            args.selection()?;
            stored::latest(operator.tables().await?, &args).await
        }
        ReadingsVerb::List(args) => {
            let selection = args.selection()?;
            stored::list(operator.tables().await?, &selection, &args).await
        }
        ReadingsVerb::Recalibrate(args) => recalibrate(operator, args).await,
        ReadingsVerb::Flag(args) => {
            let correction = Correction::Flag(args.flag());
            let own = json!({ "as": args.flag });
            correct(operator, args.range, correction, Calibration::default(), own).await
        }
        ReadingsVerb::Amend(args) => {
            let own = json!({
                "value": args.value, "factor": args.factor, "offset": args.offset, "calibration": args.calibration,
            });
            let calibration = args.calibration.as_deref().map(load).transpose()?.unwrap_or_default();
            let correction = Correction::Amend(args.amendment()?);
            correct(operator, args.range, correction, calibration, own).await
        }
        ReadingsVerb::Delete(range) => {
            correct(operator, range, Correction::Delete, Calibration::default(), json!({})).await
        }
        ReadingsVerb::Corrections(args) => {
            let selection = args.range.selection()?;
            corrections::run(operator.tables().await?, &selection, &args).await
        }
    }
}

fn load(calibration: &Path) -> Result<Calibration, Failure> {
    Calibration::load(calibration).map_err(|error| Failure::new(Exit::Config, error))
}

async fn correct(
    operator: &Operator,
    range: CorrectArgs,
    correction: Correction,
    calibration: Calibration,
    own: Value,
) -> Result<Exit, Failure> {
    let selection = range.selection()?;
    range.confirmed(correction)?;
    let actor = command_line();
    let (pool, tables) = operator.tables().await?;
    let correcting = Correcting {
        pool,
        tables,
        selection,
        correction,
        calibration,
        command: TaskId::random().as_str().to_owned(),
        reason: range.reason.clone(),
        by: actor.name.clone(),
        dry_run: range.dry_run,
    };
    let correct = async {
        waits::unlimited();
        correcting.run().await
    };
    let counts = if range.dry_run {
        correct.await?
    } else {
        let mut arguments = range.record();
        if let (Some(arguments), Value::Object(own)) = (arguments.as_object_mut(), own) {
            arguments.extend(own);
        }
        let name = format!("readings.{}", correction.name());
        let result = |counts: &Corrected| json!(counts);
        audited(operator, actor, &name, arguments, correct, result).await?
    };
    if range.json {
        output::json(&(json!(counts).to_string() + "\n"))?;
    } else {
        output::lines(&counts.text(correction))?;
    }
    Ok(Exit::Done)
}

async fn recalibrate(operator: &Operator, args: RecalibrateArgs) -> Result<Exit, Failure> {
    let calibration = load(&args.calibration)?;
    let selection = args.range.selection()?;
    let jobs = usize::from(args.jobs);
    let database = operator.tables_with(jobs).await?;
    let mut interrupts = Interrupts::catch()?;
    let stop = CancellationToken::new();
    let address = database.0.address().to_owned();
    let recalibration =
        Recalibration::new(database, calibration, selection, args.dry_run, jobs, stop.clone());
    let work = async {
        let work = async {
            waits::unlimited();
            recalibration.run().await
        };
        if args.dry_run {
            return work.await;
        }
        let result = |report: &Report| json!(report.counts);
        audited(operator, command_line(), "readings.recalibrate", args.record(), work, result).await
    };
    let mut work = pin!(work);
    let report = tokio::select! {
        report = &mut work => report?,
        () = interrupts.recv() => {
            stop.cancel();
            output::note("interrupted: finishing the present batches");
            tokio::select! {
                report = &mut work => report?,
                () = interrupts.recv() => {
                    let line = "interrupted twice: the present batches are undone; run the command again";
                    return Err(Failure::new(Exit::Interrupted, line));
                }
            }
        }
    };
    if args.json {
        output::json(&report.json())?;
    } else {
        output::lines(&report.text())?;
    }
    if let Some(problem) = report.problem() {
        let line = format!("Postgres at {address}: {problem}; run the command again to continue");
        return Err(Failure::new(Exit::Failed, line));
    }
    Ok(if report.interrupted { Exit::Failed } else { Exit::Done })
}
