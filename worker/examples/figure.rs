//! Draws a recording with what the stock worker makes of it: the readings, those that calibration flags,
//! the alarms that rules raise, and the anomalies that `window.analyze` finds with nothing to look ahead.
//!
//! ```sh
//! cargo run -p garenne-worker --example figure -- deploy/demo/recording.csv examples/greenhouse docs/guides/sensors.svg
//! ```
//!
//! The recording has columns `time` (RFC 3339), `device`, `temperature_C` and `humidity_pct`; the folder has
//! `calibration.toml` and `rules.toml`.

use std::{collections::BTreeMap, env, error::Error, fmt::Write as _, fs, path::Path};

use garenne_common::sensor::{Timestamp, readings_from};
use garenne_worker::{
    Raised, Rules,
    builtin::{
        reading::{Calibration, Stored, process},
        window,
    },
};

/// A panel: metric, title, unit, lowest and highest value drawn, where its top is.
type Panel = (&'static str, &'static str, f64, f64, f64);
const PANELS: [Panel; 2] = [
    ("temperature", "temperature, °C", 14.0, 34.0, 40.0),
    ("humidity", "relative humidity, %", 40.0, 80.0, 330.0),
];
const COLOURS: [&str; 6] = ["#4477aa", "#66ccee", "#228833", "#aa7700", "#ee6677", "#aa3377"];
const LEFT: f64 = 60.0;
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [recording, folder, figure] = arguments.as_slice() else {
        return Err("expected a recording, a folder with calibration and rules, and a file to write".into());
    };
    let calibration = Calibration::load(&Path::new(folder).join("calibration.toml"))?;
    let rules = Rules::load(&Path::new(folder).join("rules.toml"))?;
    let readings = read(&fs::read_to_string(recording)?, &calibration)?;
    fs::write(figure, draw(&readings, &rules)?)?;
    Ok(())
}

type Series = BTreeMap<(String, String), Vec<Stored>>;

/// Each row as a sensor would have sent it, through the worker's own parser and processing.
fn read(text: &str, calibration: &Calibration) -> Result<Series, Box<dyn Error>> {
    let now = Timestamp::parse("2026-05-05T00:00:00Z")?;
    let mut series = Series::new();
    for line in text.lines().skip(1) {
        let cells: Vec<_> = line.split(',').collect();
        let [time, device, temperature, humidity] = cells.as_slice() else {
            return Err(format!("{line:?} has other columns").into());
        };
        let body = serde_json::json!([
            {"device": device, "metric": "temperature", "value": temperature.parse::<f64>()?, "unit": "Cel", "time": time},
            {"device": device, "metric": "humidity", "value": humidity.parse::<f64>()?, "unit": "%RH", "time": time},
        ]);
        let records = readings_from("application/json", body.to_string().as_bytes(), now)?;
        for stored in process(&records, calibration).readings {
            series.entry((stored.metric.to_string(), stored.device.to_string())).or_default().push(stored);
        }
    }
    Ok(series)
}

fn draw(series: &Series, rules: &Rules) -> Result<String, Box<dyn Error>> {
    let times = || series.values().flatten().map(|stored| stored.time.as_unix_seconds());
    let (from, to) = (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max));
    let x = |time: Timestamp| LEFT + (time.as_unix_seconds() - from) / (to - from) * WIDTH;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 840 660\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"840\" height=\"660\" fill=\"#ffffff\"/>\n",
    );
    for (metric, title, low, high, top) in PANELS {
        let y = |value: f64| top + HEIGHT - (value - low) / (high - low) * HEIGHT;
        writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{title}</text>", top - 10.0)?;
        for step in 0..=4 {
            let value = low + (high - low) * f64::from(step) / 4.0;
            let at = y(value);
            writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#dddddd\"/>", LEFT + WIDTH)?;
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
                LEFT - 6.0,
                at + 4.0
            )?;
        }
        let devices = series.iter().filter(|((of, _), _)| of == metric);
        for (((_, device), readings), colour) in devices.zip(COLOURS) {
            for anomaly in anomalies(readings)? {
                let (since, upto) = (x(anomaly.start), x(anomaly.end));
                let width = (upto - since).max(2.0);
                writeln!(
                    svg,
                    "<rect x=\"{since:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{colour}\" opacity=\"0.18\">\
                     <title>{device}: {:?}, {:.1} times its threshold</title></rect>",
                    anomaly.signal, anomaly.score
                )?;
            }
            let mut line = String::new();
            for (nth, stored) in readings.iter().enumerate() {
                let command = if nth == 0 { 'M' } else { 'L' };
                write!(line, "{command}{:.1} {:.1}", x(stored.time), y(stored.value))?;
            }
            writeln!(svg, "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\"/>")?;
            for stored in readings.iter().filter(|stored| !stored.quality.is_usable()) {
                let (at, value) = (x(stored.time), y(stored.value));
                writeln!(
                    svg,
                    "<circle cx=\"{at:.1}\" cy=\"{value:.1}\" r=\"3\" fill=\"none\" stroke=\"#000000\"/>"
                )?;
            }
            for Raised { rule, since, upto } in rules.in_recording(device, metric, readings) {
                let value =
                    readings.iter().find(|stored| stored.time == since).map_or(low, |stored| stored.value);
                let (left, right, at) = (x(since), x(upto), y(value));
                writeln!(
                    svg,
                    "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>"
                )?;
                writeln!(
                    svg,
                    "<path d=\"M{left:.1} {:.1}l-5 -9h10z\" fill=\"{colour}\"><title>{device}: {rule}, {since} to {upto}</title></path>",
                    at - 2.0
                )?;
                println!("{device} {metric}: {rule} from {since} to {upto}");
            }
        }
    }
    hours(&mut svg, from, to)?;
    legend(&mut svg, series)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn anomalies(readings: &[Stored]) -> Result<Vec<window::anomaly::Anomaly>, Box<dyn Error>> {
    let times: Vec<_> = readings.iter().map(|stored| stored.time).collect();
    let values: Vec<_> = readings.iter().map(|stored| Some(stored.value)).collect();
    Ok(window::analyze(window::Series { times: &times, values: &values }, false)?.anomalies)
}

fn hours(svg: &mut String, from: f64, to: f64) -> Result<(), Box<dyn Error>> {
    let mut hour = (from / 3600.0).ceil() * 3600.0;
    while hour <= to {
        let x = LEFT + (hour - from) / (to - from) * WIDTH;
        let label = (hour / 3600.0).rem_euclid(24.0);
        writeln!(svg, "<text x=\"{x:.1}\" y=\"590\" text-anchor=\"middle\">{label:.0}:00</text>")?;
        hour += 3600.0;
    }
    Ok(())
}

fn legend(svg: &mut String, series: &Series) -> Result<(), Box<dyn Error>> {
    let mut devices: Vec<_> = series.keys().map(|(_, device)| device).collect();
    devices.sort_unstable();
    devices.dedup();
    for (nth, (device, colour)) in devices.into_iter().zip(COLOURS).enumerate() {
        let x = LEFT + nth as f64 * 125.0;
        writeln!(svg, "<path d=\"M{x} 616h18\" stroke=\"{colour}\" stroke-width=\"3\"/>")?;
        writeln!(svg, "<text x=\"{}\" y=\"620\">{device}</text>", x + 23.0)?;
    }
    svg.push_str(
        "<text x=\"60\" y=\"646\">○ flagged by calibration    ▾ and thick line: alarm by a rule    shaded: anomaly of that device</text>\n",
    );
    Ok(())
}
