//! The demo's recording, with its times moved to the present. Two runs never send the same device and time: the
//! readings of the later run would count as repetitions.

use std::{
    io::{self, Cursor, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The recording that is part of the program.
const BUILT_IN: &str = include_str!("../../../../deploy/demo/recording.csv");
/// Duration of one pass unless a speed is given.
pub(super) const PASS: Duration = Duration::from_secs(30);

/// A recording to replay.
pub(super) enum Recording {
    /// Its times can be moved, so it is replayed pass after pass.
    Movable(Movable),
    /// Only `replay` knows its layout. It is sent once, unchanged.
    AsIs(PathBuf),
}

/// A CSV file with a column `time` in RFC 3339, and usually a column `device`.
pub(super) struct Movable {
    headings: csv::StringRecord,
    rows: Vec<csv::StringRecord>,
    time: usize,
    device: Option<usize>,
    times: Vec<OffsetDateTime>,
    /// From the first row to the last.
    pub(super) span: Duration,
    /// Readings in one pass: cells with a number.
    pub(super) readings: u64,
}

impl Recording {
    /// Opens a file, or the built-in recording.
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            let movable =
                Movable::read(Cursor::new(BUILT_IN))?.context("the built-in recording has no times")?;
            return Ok(Self::Movable(movable));
        };
        let named = || format!("cannot read recording {}", path.display());
        let file = std::fs::File::open(path).with_context(named)?;
        Ok(match Movable::read(file).ok().flatten() {
            Some(movable) => Self::Movable(movable),
            None => Self::AsIs(path.to_owned()),
        })
    }

    /// Readings in one pass; 0 if that is not known.
    pub(super) fn readings(&self) -> u64 {
        if let Self::Movable(movable) = self { movable.readings } else { 0 }
    }

    /// How many times faster than recorded it is sent, 0 for as fast as possible. By default a pass takes its default
    /// time. The findings at the end are those of the first pass, so a short demo has a complete one too.
    pub(super) fn speed(&self, given: Option<f64>, lasts: Option<Duration>) -> f64 {
        let Self::Movable(movable) = self else { return given.unwrap_or(0.0) };
        let pass = lasts.map_or(PASS, |lasts| PASS.min(lasts * 4 / 5));
        given.unwrap_or(movable.span.as_secs_f64() / pass.as_secs_f64().max(1e-3)).max(1e-6)
    }
}

impl Movable {
    /// Reads a recording. Nothing if it has no usable `time` column.
    fn read(from: impl Read) -> Result<Option<Self>, csv::Error> {
        let mut reader = csv::Reader::from_reader(from);
        let headings = reader.headers()?.clone();
        let column =
            |name: &str| headings.iter().position(|heading| heading.trim().eq_ignore_ascii_case(name));
        let (Some(time), device) = (column("time"), column("device")) else { return Ok(None) };
        let rows = reader.records().collect::<Result<Vec<_>, _>>()?;
        let parse = |row: &csv::StringRecord| OffsetDateTime::parse(row.get(time)?.trim(), &Rfc3339).ok();
        let Some(times) = rows.iter().map(parse).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let (Some(&first), Some(&last)) = (times.iter().min(), times.iter().max()) else { return Ok(None) };
        let number = |(at, cell): (usize, &str)| {
            at != time && Some(at) != device && cell.trim().parse::<f64>().is_ok()
        };
        let readings =
            rows.iter().map(|row| row.iter().enumerate().filter(|cell| number(*cell)).count() as u64).sum();
        let span = (last - first).try_into().unwrap_or_default();
        Ok(Some(Self { headings, rows, time, device, times, span, readings }))
    }

    /// The devices of which it has readings, each once.
    pub(super) fn devices(&self) -> Vec<&str> {
        let mut devices: Vec<_> = self
            .device
            .into_iter()
            .flat_map(|at| self.rows.iter().filter_map(move |row| row.get(at)))
            .collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The time of its first row.
    pub(super) fn first(&self) -> OffsetDateTime {
        self.times.iter().min().copied().unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// Writes one pass. Its first row has the time `start`, and its time runs `speed` times as fast as recorded.
    /// `prefix` is put before the devices' names.
    pub(super) fn write(&self, to: &Path, start: SystemTime, speed: f64, prefix: &str) -> anyhow::Result<()> {
        let (first, start) = (self.first(), OffsetDateTime::from(start));
        let mut writer =
            csv::Writer::from_path(to).with_context(|| format!("cannot write {}", to.display()))?;
        writer.write_record(&self.headings)?;
        for (row, time) in self.rows.iter().zip(&self.times) {
            let moved = start + (*time - first) / speed;
            // A reading's time has microseconds.
            let moved = moved.replace_nanosecond(moved.nanosecond() / 1000 * 1000).unwrap_or(moved);
            let moved = moved.format(&Rfc3339).map_err(io::Error::other)?;
            let cells = row.iter().enumerate().map(|(at, cell)| match at {
                at if at == self.time => moved.clone(),
                at if Some(at) == self.device => format!("{prefix}{cell}"),
                _ => cell.to_owned(),
            });
            writer.write_record(cells)?;
        }
        writer.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn the_built_in_recording_can_be_moved() {
        let Recording::Movable(movable) = Recording::open(None).unwrap() else {
            panic!("its times cannot be moved")
        };
        assert!(movable.readings > 5_000, "{}", movable.readings);
        assert!(movable.span > Duration::from_secs(3600));
    }

    #[test]
    fn a_pass_begins_at_its_start_and_runs_at_its_speed() {
        let text = "time,device,t_C\n2026-05-04T05:00:00Z,a,1\n2026-05-04T05:01:00Z,b,\n";
        let movable = Movable::read(Cursor::new(text)).unwrap().unwrap();
        assert_eq!((movable.readings, movable.span), (1, Duration::from_secs(60)));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pass.csv");
        movable.write(&path, UNIX_EPOCH + Duration::from_secs(10), 120.0, "x-").unwrap();
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "time,device,t_C\n1970-01-01T00:00:10Z,x-a,1\n1970-01-01T00:00:10.5Z,x-b,\n"
        );
    }

    #[test]
    fn a_recording_without_rfc_3339_times_is_not_movable() {
        assert!(Movable::read(Cursor::new("Date;Time\n10/03/2004;18.00.00\n")).unwrap().is_none());
        assert!(Movable::read(Cursor::new("time,v\nyesterday,1\n")).unwrap().is_none());
    }
}
