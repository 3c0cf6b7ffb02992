//! The events of a demo and their times.

use std::time::Duration;

use garenne_chaos::{Fault, FaultSchedule};

/// A step of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoStep {
    /// A burst of readings, so that the workers have queued tasks.
    Burst,
    /// A fault of the busiest worker, or of the broker.
    Fault(Fault),
    /// The bridge is killed.
    KillBridge,
    /// Mosquitto is killed.
    KillMosquitto,
}

/// Steps by the time since the start.
pub(super) type DemoSchedule = FaultSchedule<Duration, DemoStep>;

/// From a burst to the fault during it.
const BURST_LEAD: Duration = Duration::from_millis(600);

/// Kills of everything between a device and the database, and a soft stop, at equal distances. Those of the bridge and the
/// workers are during bursts.
pub(super) fn mqtt_schedule(span: Duration) -> DemoSchedule {
    let bursts = |step| matches!(step, DemoStep::KillBridge | DemoStep::Fault(Fault::Soft | Fault::Kill));
    let steps = [
        DemoStep::Fault(Fault::Soft),
        DemoStep::KillBridge,
        DemoStep::Fault(Fault::Kill),
        DemoStep::KillMosquitto,
        DemoStep::Fault(Fault::BrokerRestart),
    ];
    let slice = span / (steps.len() as u32 + 2);
    let at_its_time = |(number, step): (u32, DemoStep)| {
        let at = slice * (number + 1);
        let burst = bursts(step).then(|| (at.saturating_sub(BURST_LEAD), DemoStep::Burst));
        burst.into_iter().chain([(at, step)])
    };
    FaultSchedule::new((0..).zip(steps).flat_map(at_its_time))
}

/// A soft stop after a third of `span` and a kill after two thirds, each during a burst.
pub(super) fn schedule(span: Duration) -> DemoSchedule {
    let during_burst = |at: Duration, fault| {
        [(at.saturating_sub(BURST_LEAD), DemoStep::Burst), (at, DemoStep::Fault(fault))]
    };
    let steps = [during_burst(span / 3, Fault::Soft), during_burst(span * 2 / 3, Fault::Kill)];
    FaultSchedule::new(steps.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [DemoStep; 4] =
        [DemoStep::Burst, DemoStep::Fault(Fault::Soft), DemoStep::Burst, DemoStep::Fault(Fault::Kill)];

    #[test]
    fn each_fault_follows_a_burst_at_its_third() {
        let mut schedule = schedule(Duration::from_secs(30));
        let mut seen = Vec::new();
        for tenth in 0..300 {
            let now = Duration::from_millis(tenth * 100);
            while let Some(step) = schedule.due(now) {
                seen.push((tenth, step));
            }
        }
        assert_eq!(seen, [(94, STEPS[0]), (100, STEPS[1]), (194, STEPS[2]), (200, STEPS[3])]);
        assert!(schedule.is_over());
    }

    #[test]
    fn with_mqtt_everything_is_killed_once() {
        let mut schedule = mqtt_schedule(Duration::from_secs(70));
        let mut seen = Vec::new();
        for second in 0..70 {
            while let Some(step) = schedule.due(Duration::from_secs(second)) {
                seen.push((second, step));
            }
        }
        assert_eq!(
            seen,
            [
                (10, DemoStep::Burst),
                (10, DemoStep::Fault(Fault::Soft)),
                (20, DemoStep::Burst),
                (20, DemoStep::KillBridge),
                (30, DemoStep::Burst),
                (30, DemoStep::Fault(Fault::Kill)),
                (40, DemoStep::KillMosquitto),
                (50, DemoStep::Fault(Fault::BrokerRestart)),
            ]
        );
    }

    #[test]
    fn a_very_short_demo_has_every_step() {
        let mut schedule = schedule(Duration::from_secs(1));
        let steps: Vec<_> = std::iter::from_fn(|| schedule.due(Duration::from_secs(1))).collect();
        assert_eq!(steps, STEPS);
    }
}
