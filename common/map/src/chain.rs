//! Several maps for one input.

use garenne_protocol::{
    sensor::{Limits, Timestamp},
    task::Source,
};

use crate::{
    map::{InvalidMap, Map, Mapped},
    unmapped::{Reason, Unmapped},
};

/// Maps that are tried in order. The first that has a rule for a payload counts.
#[derive(Debug)]
pub struct MapChain(Vec<Map>);

impl MapChain {
    /// Loads shipped maps, such as `builtin:zigbee2mqtt`, and files, in this order.
    pub fn load<N: AsRef<str>>(names: &[N]) -> Result<Self, InvalidMap> {
        names.iter().map(|name| Map::load(name.as_ref())).collect()
    }

    /// Maps a payload, or says why no reading comes out. `now` is the time of readings without one.
    pub fn apply(
        &self,
        source: Source<'_>,
        payload: &[u8],
        now: Timestamp,
        limits: &Limits,
    ) -> Result<Mapped, Unmapped> {
        let mut outcome = Err(Unmapped { rule: None, reason: Reason::NoRule });
        for map in &self.0 {
            outcome = map.apply(source, payload, now, limits);
            if !matches!(&outcome, Err(unmapped) if unmapped.reason == Reason::NoRule) {
                break;
            }
        }
        outcome
    }

    /// As [`Map::remainder`], of the map that takes the payload.
    pub fn remainder(&self, source: Source<'_>, payload: &[u8], now: Timestamp, limits: &Limits) -> Vec<u8> {
        let takes = |map: &&Map| map.apply(source, payload, now, limits).is_ok();
        let map = self.0.iter().find(takes);
        map.map_or_else(|| payload.to_vec(), |map| map.remainder(source, payload, now, limits))
    }
}

impl FromIterator<Map> for MapChain {
    fn from_iter<I: IntoIterator<Item = Map>>(maps: I) -> Self {
        Self(maps.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_map_with_a_rule_for_the_source_counts() {
        let map = |rules: &str| Map::parse("test", rules).unwrap();
        let skip = "[[map]]\ntopic = \"n/#\"\nskip = true\n";
        let number = "[[map]]\ntopic = \"n/+\"\ndevice = \"{1}\"\nmetric = \"m\"\n";
        let other = "[[map]]\ntopic = \"o/+\"\ndevice = \"{1}\"\nmetric = \"m\"\n";
        let mapped = |maps: &[&str], payload: &str| {
            let chain: MapChain = maps.iter().map(|rules| map(rules)).collect();
            let source = Source::Topic("n/a");
            let outcome = chain.apply(source, payload.as_bytes(), Timestamp::UNIX_EPOCH, &Limits::default());
            outcome.map(|mapped| mapped.records.len()).map_err(|unmapped| unmapped.reason.code())
        };
        assert_eq!(mapped(&[skip, number], "1"), Ok(0));
        assert_eq!(mapped(&[other, number], "1"), Ok(1));
        assert_eq!(mapped(&[number, skip], "{"), Err("malformed"), "a rule that matches is not passed over");
        assert_eq!(mapped(&[other], "1"), Err("no-rule"));
        assert_eq!(mapped(&[], "1"), Err("no-rule"));
    }

    #[test]
    fn the_map_that_cannot_be_loaded_is_named() {
        let invalid = MapChain::load(&["builtin:zigbee2mqtt", "builtin:x"]).unwrap_err();
        assert!(invalid.to_string().starts_with("map builtin:x: no such map; there are chirpstack"));
    }
}
