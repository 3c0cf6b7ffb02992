//! Draws a recording with the results of the stock worker: the readings, those that calibration flags, the alarms that
//! rules raise, and the anomalies that `window.analyze` finds without looking ahead.
//!
//! ```sh
//! cargo run -p garenne-worker --example figure -- examples/office docs/guides/sensors.svg
//! ```
//!
//! The folder has `recording.csv` (time and temperature in °F), `calibration.toml` and `rules.toml`.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

use garenne_alarms::alarm::{Condition, Point, Rule, Rules, Sample, find_excursions};
use garenne_protocol::sensor::{Timestamp, readings_from};
use garenne_sensors::{
    reading::{CalibratedReading, Calibration, process},
    window,
};
use time::{Month, OffsetDateTime};

const DEVICE: &str = "office";
const METRIC: &str = "temperature";
/// The lowest and highest value drawn, in °C.
const RANGE: (f64, f64) = (13.0, 31.0);
const LEFT: f64 = 50.0;
const TOP: f64 = 40.0;
const WIDTH: f64 = 770.0;
const HEIGHT: f64 = 300.0;
/// The known failures of the system, from the recording's publishers.
const FAILURES: [(&str, &str); 2] =
    [("2013-12-15T07:00:00Z", "2013-12-30T09:00:00Z"), ("2014-03-29T15:00:00Z", "2014-04-20T22:00:00Z")];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [folder, figure] = arguments.as_slice() else {
        return Err("expected a folder with a recording, calibration and rules, and a file to write".into());
    };
    let folder = Path::new(folder);
    let calibration = Calibration::load(&folder.join("calibration.toml"))?;
    let rules = Rules::load(&folder.join("rules.toml"))?;
    let readings = read(&fs::read_to_string(folder.join("recording.csv"))?, &calibration)?;
    fs::write(figure, draw(&readings, &rules)?)?;
    Ok(())
}

/// Parses and processes each row with the worker's code, as if the sensor had sent it.
fn read(text: &str, calibration: &Calibration) -> Result<Vec<CalibratedReading>, Box<dyn Error>> {
    let now = Timestamp::parse("2026-01-01T00:00:00Z")?;
    let mut readings = Vec::new();
    for line in text.lines().skip(1) {
        let (time, value) = line.split_once(',').ok_or_else(|| format!("{line:?} has other columns"))?;
        let time = format!("{}Z", time.replace(' ', "T"));
        let body = serde_json::json!({
            "device": DEVICE, "metric": METRIC, "value": value.parse::<f64>()?, "unit": "degF", "time": time,
        });
        let records = readings_from("application/json", body.to_string().as_bytes(), now)?;
        readings.extend(process(&records, calibration).0.readings);
    }
    Ok(readings)
}

fn draw(readings: &[CalibratedReading], rules: &Rules) -> Result<String, Box<dyn Error>> {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
        return Err("the recording is empty".into());
    };
    let (from, to) = (first.time.as_unix_seconds(), last.time.as_unix_seconds());
    let x = |time: Timestamp| LEFT + (time.as_unix_seconds() - from) / (to - from) * WIDTH;
    let y = |value: f64| TOP + HEIGHT - (value - RANGE.0) / (RANGE.1 - RANGE.0) * HEIGHT;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 840 430\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"840\" height=\"430\" fill=\"#ffffff\"/>\n\
         <text x=\"50\" y=\"22\" font-weight=\"bold\">Office temperature, °C</text>\n",
    );
    for value in [14.0, 18.0, 22.0, 26.0, 30.0] {
        let at = y(value);
        writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#dddddd\"/>", LEFT + WIDTH)?;
        writeln!(svg, "<text x=\"44\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>", at + 4.0)?;
    }
    months(&mut svg, from, to, x)?;
    for (since, upto) in FAILURES {
        let (since, upto) = (x(Timestamp::parse(since)?), x(Timestamp::parse(upto)?));
        let width = upto - since;
        writeln!(
            svg,
            "<rect x=\"{since:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"8\" fill=\"#555555\"/>",
            TOP + HEIGHT - 8.0
        )?;
    }
    for anomaly in anomalies(readings)? {
        let since = x(anomaly.start);
        let width = (x(anomaly.end) - since).max(2.0);
        writeln!(
            svg,
            "<rect x=\"{since:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"#ee9900\" opacity=\"0.35\">\
             <title>{} to {}: {:?}, {:.1} times its threshold</title></rect>",
            anomaly.start, anomaly.end, anomaly.signal, anomaly.score
        )?;
        println!(
            "anomaly from {} to {} ({:?}, {:.1})",
            anomaly.start, anomaly.end, anomaly.signal, anomaly.score
        );
    }
    let mut line = String::new();
    let mut before = f64::NEG_INFINITY;
    for stored in readings {
        // A gap interrupts the line.
        let command = if stored.time.as_unix_seconds() - before > 7_200.0 { 'M' } else { 'L' };
        write!(line, "{command}{:.1} {:.1}", x(stored.time), y(stored.value))?;
        before = stored.time.as_unix_seconds();
    }
    writeln!(svg, "<path d=\"{line}\" fill=\"none\" stroke=\"#4477aa\" stroke-width=\"0.8\"/>")?;
    for stored in readings.iter().filter(|stored| !stored.is_usable()) {
        let (at, value) = (x(stored.time), y(stored.value));
        writeln!(svg, "<circle cx=\"{at:.1}\" cy=\"{value:.1}\" r=\"3\" fill=\"none\" stroke=\"#000000\"/>")?;
    }
    for RaisedAlarm { rule, since, upto } in alarms(rules, readings) {
        let value =
            readings.iter().find(|stored| stored.time == since).map_or(RANGE.0, |stored| stored.value);
        let (left, right, at) = (x(since), x(upto).max(x(since) + 2.0), y(value));
        let colour = if rule == "silent" { "#888888" } else { "#cc3311" };
        writeln!(svg, "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>")?;
        writeln!(
            svg,
            "<path d=\"M{left:.1} {:.1}l-5 -9h10z\" fill=\"{colour}\"><title>{rule}, {since} to {upto}</title></path>",
            at - 2.0
        )?;
        println!("{rule} from {since} to {upto}");
    }
    svg.push_str(
        "<text x=\"50\" y=\"392\">○ flagged by calibration   ▾ alarm by a rule, as long as its line; grey: nothing came</text>\n\
         <rect x=\"50\" y=\"404\" width=\"14\" height=\"12\" fill=\"#ee9900\" opacity=\"0.35\"/>\
         <text x=\"70\" y=\"414\">like nothing before it</text>\n\
         <rect x=\"220\" y=\"406\" width=\"14\" height=\"8\" fill=\"#555555\"/>\
         <text x=\"240\" y=\"414\">the system is known to have failed</text>\n</svg>\n",
    );
    Ok(svg)
}

/// An alarm that a rule raises.
struct RaisedAlarm {
    rule: String,
    /// The first reading that violates the rule; for silence, the last one before it.
    since: Timestamp,
    /// The last reading that violates the rule; for silence, the first one after it.
    upto: Timestamp,
}

/// The alarms that the rules raise in the recording.
fn alarms(rules: &Rules, readings: &[CalibratedReading]) -> Vec<RaisedAlarm> {
    let sample = |stored: &CalibratedReading| Sample {
        at: stored.time.as_micros(),
        value: stored.value,
        unit: stored.unit,
        start: None,
        zero: None,
    };
    let all: Vec<_> = readings.iter().map(sample).collect();
    let usable: Vec<_> = readings.iter().filter(|stored| stored.is_usable()).map(sample).collect();
    let evaluate = |rule: &Rule| {
        let convert = |samples: &[Sample]| -> Vec<Point> {
            samples.iter().filter_map(|sample| rule.convert(sample)).collect()
        };
        let intervals = match rule.condition {
            // A device that sends unusable values is not silent.
            Condition::Silent { duration } => {
                let shortest = duration.as_micros() as i64;
                let pairs = convert(&all);
                let gap = |pair: &[Point]| (pair[0].at, pair[1].at);
                pairs.windows(2).map(gap).filter(|(since, upto)| upto - since >= shortest).collect()
            }
            condition => {
                let excursions = find_excursions(&condition, None, &convert(&usable));
                excursions.into_iter().map(|excursion| (excursion.since, excursion.upto)).collect::<Vec<_>>()
            }
        };
        let time = |at| Timestamp::from_micros(at).ok();
        let raised = |(since, upto)| {
            Some(RaisedAlarm { rule: rule.name.clone(), since: time(since)?, upto: time(upto)? })
        };
        intervals.into_iter().filter_map(raised).collect::<Vec<_>>()
    };
    rules.matching(DEVICE, METRIC).flat_map(evaluate).collect()
}

fn anomalies(readings: &[CalibratedReading]) -> Result<Vec<window::anomaly::Anomaly>, Box<dyn Error>> {
    let times: Vec<_> = readings.iter().map(|stored| stored.time).collect();
    let values: Vec<_> = readings.iter().map(|stored| Some(stored.value)).collect();
    Ok(window::analyze(&window::Series { times, values }, false)?.anomalies)
}

fn months(svg: &mut String, from: f64, to: f64, x: impl Fn(Timestamp) -> f64) -> Result<(), Box<dyn Error>> {
    let mut first = OffsetDateTime::from_unix_timestamp(from as i64)?.date().replace_day(1)?;
    loop {
        let month = first.month();
        let year = first.year() + i32::from(month == Month::December);
        first = first.replace_day(1)?.replace_year(year)?.replace_month(month.next())?;
        let at = first.midnight().assume_utc().unix_timestamp() as f64;
        if at > to {
            return Ok(());
        }
        let at = x(Timestamp::from_unix_seconds(at)?);
        let name = first.month().to_string();
        writeln!(svg, "<path d=\"M{at:.1} {TOP}V{}\" stroke=\"#eeeeee\"/>", TOP + HEIGHT)?;
        writeln!(svg, "<text x=\"{:.1}\" y=\"358\">{}</text>", at + 3.0, &name[..3])?;
    }
}
