//! The readings and faults of one virtual sensor.

use std::sync::Arc;

use clap::Args;
use garenne_protocol::sensor::{Reading, Timestamp, Unit};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::args::number;

/// Faults of a sensor. Probabilities are per reading.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Faults {
    /// Standard deviation of the noise, in the metric's unit
    #[arg(long, value_name = "SIGMA", default_value = "0.15", value_parser = number(|noise| noise >= 0.0, "a number of at least 0"))]
    noise: f64,
    /// Drift per day, in the metric's unit
    #[arg(long = "drift", value_name = "PER-DAY", default_value_t = 0.5, allow_hyphen_values = true)]
    drift_per_day: f64,
    /// Probability that a reading is not sent
    #[arg(long, value_name = "P", default_value = "0", value_parser = probability)]
    dropout: f64,
    /// Probability that a sensor repeats its value for a while
    // For the next 5 to 50 readings.
    #[arg(long, value_name = "P", default_value = "0.001", value_parser = probability)]
    stuck: f64,
    /// Probability of an outlier
    #[arg(long, value_name = "P", default_value = "0.001", value_parser = probability)]
    spike: f64,
}

fn probability(text: &str) -> Result<f64, String> {
    number(|number| (0.0..=1.0).contains(&number), "a probability from 0 to 1")(text)
}

/// A metric and its daily curve.
struct Quantity {
    metric: &'static str,
    unit: &'static str,
    mean: f64,
    swing: f64,
    low: f64,
    high: f64,
}

const QUANTITIES: [Quantity; 4] = [
    Quantity { metric: "temperature", unit: "Cel", mean: 18.0, swing: 6.0, low: -40.0, high: 85.0 },
    Quantity { metric: "humidity", unit: "%RH", mean: 60.0, swing: -18.0, low: 0.0, high: 100.0 },
    Quantity { metric: "pressure", unit: "hPa", mean: 1013.0, swing: 2.0, low: 300.0, high: 1100.0 },
    Quantity { metric: "illuminance", unit: "lx", mean: 4000.0, swing: 4000.0, low: 0.0, high: 100_000.0 },
];

/// A virtual sensor. The same seed and number give the same readings.
pub(super) struct SensorModel {
    device: Arc<str>,
    metric: Arc<str>,
    quantity: &'static Quantity,
    unit: Option<Unit>,
    faults: Faults,
    random: SmallRng,
    /// Constant deviation of this sensor.
    bias: f64,
    /// Remaining readings with a repeated value, and the value.
    stuck: Option<(u32, f64)>,
    began: Option<Timestamp>,
}

const DAY_SECONDS: f64 = 86_400.0;

impl SensorModel {
    /// The sensor with this number. Four consecutive numbers are one device with four metrics.
    pub(super) fn new(seed: u64, number: usize, faults: Faults) -> Self {
        let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number as u64);
        let quantity = &QUANTITIES[number % QUANTITIES.len()];
        let bias = random.random_range(-0.15..0.15) * quantity.swing;
        Self {
            device: format!("sim-{seed}-{:05}", number / QUANTITIES.len()).into(),
            metric: quantity.metric.into(),
            quantity,
            unit: Unit::get(quantity.unit),
            faults,
            random,
            bias,
            stuck: None,
            began: None,
        }
    }

    /// The reading at `time`; `None` if it drops out.
    pub(super) fn measure(&mut self, time: Timestamp) -> Option<Reading> {
        let began = *self.began.get_or_insert(time);
        let value = self.value(time, began);
        if self.chance(self.faults.dropout) {
            return None;
        }
        Some(Reading {
            device: Arc::clone(&self.device),
            metric: Arc::clone(&self.metric),
            value: (value * 1000.0).round() / 1000.0,
            unit: self.unit,
            counter: None,
            time,
        })
    }

    fn value(&mut self, time: Timestamp, began: Timestamp) -> f64 {
        let noise = self.normal() * self.faults.noise;
        if let Some((left, value)) = self.stuck.take().filter(|(left, _)| *left > 0) {
            self.stuck = Some((left - 1, value));
            return value;
        }
        let seconds = time.as_unix_seconds();
        // The maximum is in the middle of the afternoon.
        let day = (std::f64::consts::TAU * (seconds / DAY_SECONDS - 0.375)).sin();
        let drift = self.faults.drift_per_day * (seconds - began.as_unix_seconds()) / DAY_SECONDS;
        let quantity = self.quantity;
        let mut value = quantity.mean + self.bias + quantity.swing * day + drift + noise;
        if self.chance(self.faults.spike) {
            value += quantity.swing * self.random.random_range(3.0..10.0);
        }
        let value = value.clamp(quantity.low, quantity.high);
        if self.chance(self.faults.stuck) {
            self.stuck = Some((self.random.random_range(5..50), value));
        }
        value
    }

    fn chance(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.random.random::<f64>() < chance
    }

    /// A standard normal number, by the Box-Muller transform.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.random.random::<f64>()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.random.random::<f64>()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(1_763_600_000_000_000 + second * 1_000_000).unwrap()
    }

    fn values(seed: u64, number: usize, faults: &Faults, count: i64) -> Vec<Option<f64>> {
        let mut model = SensorModel::new(seed, number, *faults);
        (0..count).map(|second| model.measure(at(second)).map(|reading| reading.value)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_readings() {
        let faults = Faults { noise: 0.15, drift_per_day: 0.5, dropout: 0.0, stuck: 0.001, spike: 0.001 };
        assert_eq!(values(7, 3, &faults, 500), values(7, 3, &faults, 500));
        assert_ne!(values(7, 3, &faults, 500), values(8, 3, &faults, 500));
        let reading = SensorModel::new(7, 5, faults).measure(at(0)).unwrap();
        assert_eq!((&*reading.device, &*reading.metric), ("sim-7-00001", "humidity"));
    }

    #[test]
    fn faults_occur_with_their_probability() {
        let quiet = Faults { noise: 0.0, drift_per_day: 0.0, dropout: 0.0, stuck: 0.0, spike: 0.0 };
        let dropping = Faults { dropout: 0.25, ..quiet };
        let lost = values(1, 0, &dropping, 10_000).iter().filter(|value| value.is_none()).count();
        assert!((2_300..2_700).contains(&lost), "{lost}");
        let spiking = Faults { spike: 0.01, ..quiet };
        let high = values(1, 0, &spiking, 10_000).into_iter().flatten().filter(|value| *value > 30.0).count();
        assert!((60..150).contains(&high), "{high}");
        let hanging = Faults { stuck: 0.02, noise: 1.0, ..quiet };
        let read: Vec<f64> = values(1, 0, &hanging, 10_000).into_iter().flatten().collect();
        let repeated = read.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(repeated > 2_000, "{repeated}");
        let drifting = Faults { drift_per_day: 100.0, ..quiet };
        let mut model = SensorModel::new(1, 0, drifting);
        let first = model.measure(at(0)).unwrap().value;
        let later = model.measure(at(6 * 3600)).unwrap().value;
        assert!((later - first - 25.0).abs() < 13.0, "{first} {later}");
    }
}
