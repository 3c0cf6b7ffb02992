//! The maps that are part of the program.

/// A map that is part of the program.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// The name behind `builtin:`.
    pub name: &'static str,
    /// Its purpose, in one line.
    pub description: &'static str,
    /// The rules in TOML, to be copied and changed.
    pub text: &'static str,
}

macro_rules! builtin {
    ($name:literal, $description:literal) => {
        Builtin {
            name: $name,
            description: $description,
            text: include_str!(concat!("../maps/", $name, ".toml")),
        }
    };
}

/// The beginning of a shipped map's name where a file is expected.
pub const PREFIX: &str = "builtin:";

/// The shipped maps, by name.
pub const BUILTIN: [Builtin; 7] = [
    builtin!("chirpstack", "ChirpStack 4 uplinks, over MQTT or as webhook"),
    builtin!("homeassistant", "Home Assistant MQTT Statestream"),
    builtin!("shelly", "Shelly devices of the second generation and later, over MQTT"),
    builtin!("sparkplug", "Sparkplug B edge nodes and devices"),
    builtin!("tasmota", "Tasmota: tele/…/SENSOR and STATE, also Zigbee bridges (ZbReceived)"),
    builtin!("ttn", "The Things Stack 3 uplinks, over MQTT or as webhook"),
    builtin!("zigbee2mqtt", "Zigbee2MQTT devices and their availability"),
];

/// The shipped map with this name, without the prefix.
pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|map| map.name == name)
}
