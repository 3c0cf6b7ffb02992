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

/// The beginning of a shipped map's name where a file is expected.
pub const PREFIX: &str = "builtin:";

/// The shipped maps, by name.
pub const BUILTIN: [Builtin; 7] = [
    Builtin {
        name: "chirpstack",
        description: "ChirpStack 4 uplinks, over MQTT or as webhook",
        text: include_str!("../maps/chirpstack.toml"),
    },
    Builtin {
        name: "homeassistant",
        description: "Home Assistant MQTT Statestream",
        text: include_str!("../maps/homeassistant.toml"),
    },
    Builtin {
        name: "shelly",
        description: "Shelly devices of the second generation and later, over MQTT",
        text: include_str!("../maps/shelly.toml"),
    },
    Builtin {
        name: "sparkplug",
        description: "Sparkplug B edge nodes and devices",
        text: include_str!("../maps/sparkplug.toml"),
    },
    Builtin {
        name: "tasmota",
        description: "Tasmota: tele/…/SENSOR and STATE, also Zigbee bridges (ZbReceived)",
        text: include_str!("../maps/tasmota.toml"),
    },
    Builtin {
        name: "ttn",
        description: "The Things Stack 3 uplinks, over MQTT or as webhook",
        text: include_str!("../maps/ttn.toml"),
    },
    Builtin {
        name: "zigbee2mqtt",
        description: "Zigbee2MQTT devices and their availability",
        text: include_str!("../maps/zigbee2mqtt.toml"),
    },
];

/// The shipped map with this name, without the prefix.
pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|map| map.name == name)
}
