//! The table of units.

/// A unit. `base value = (value * multiply + add) / divide`. The factor is a fraction of two numbers, because a
/// factor such as 0.01 has no exact double, but a division by 100 is correctly rounded.
pub(super) struct Entry {
    pub(super) symbol: &'static str,
    pub(super) description: &'static str,
    pub(super) quantity: &'static str,
    /// The unit that all conversions between units of this quantity go through.
    pub(super) base: &'static str,
    pub(super) multiply: f64,
    pub(super) add: f64,
    pub(super) divide: f64,
}

/// A unit that is the base unit of its quantity.
const fn base(symbol: &'static str, description: &'static str, quantity: &'static str) -> Entry {
    derived(symbol, description, quantity, symbol, [1.0, 0.0, 1.0])
}

/// A unit that converts to `base`, with the factor as `[multiply, add, divide]`.
const fn derived(
    symbol: &'static str,
    description: &'static str,
    quantity: &'static str,
    base: &'static str,
    [multiply, add, divide]: [f64; 3],
) -> Entry {
    Entry { symbol, description, quantity, base, multiply, add, divide }
}

/// RFC 8428 §12.1 and RFC 8798 §2: the units of SenML packs.
pub(super) static PRIMARY: &[Entry] = &[
    base("m", "meter", "length"),
    base("kg", "kilogram", "mass"),
    derived("g", "gram", "mass", "kg", [1.0, 0.0, 1_000.0]),
    base("s", "second", "duration"),
    base("A", "ampere", "current"),
    derived("K", "kelvin", "temperature", "Cel", [1.0, -273.15, 1.0]),
    base("cd", "candela", "luminous_intensity"),
    base("mol", "mole", "amount"),
    base("Hz", "hertz", "frequency"),
    base("rad", "radian", "angle"),
    base("sr", "steradian", "solid_angle"),
    base("N", "newton", "force"),
    base("Pa", "pascal", "pressure"),
    base("J", "joule", "energy"),
    base("W", "watt", "power"),
    base("C", "coulomb", "charge"),
    base("V", "volt", "voltage"),
    base("F", "farad", "capacitance"),
    base("Ohm", "ohm", "resistance"),
    base("S", "siemens", "conductance"),
    base("Wb", "weber", "magnetic_flux"),
    base("T", "tesla", "magnetic_flux_density"),
    base("H", "henry", "inductance"),
    base("Cel", "degrees Celsius", "temperature"),
    base("lm", "lumen", "luminous_flux"),
    base("lx", "lux", "illuminance"),
    base("Bq", "becquerel", "radioactivity"),
    base("Gy", "gray", "absorbed_dose"),
    base("Sv", "sievert", "equivalent_dose"),
    base("kat", "katal", "catalytic_activity"),
    base("m2", "square meter (area)", "area"),
    base("m3", "cubic meter (volume)", "volume"),
    derived("l", "liter (volume)", "volume", "m3", [1.0, 0.0, 1_000.0]),
    base("m/s", "meter per second (velocity)", "speed"),
    base("m/s2", "meter per square second (acceleration)", "acceleration"),
    base("m3/s", "cubic meter per second (flow rate)", "flow"),
    derived("l/s", "liter per second (flow rate)", "flow", "m3/s", [1.0, 0.0, 1_000.0]),
    base("W/m2", "watt per square meter (irradiance)", "irradiance"),
    base("cd/m2", "candela per square meter (luminance)", "luminance"),
    base("bit", "bit (information content)", "information"),
    base("bit/s", "bit per second (data rate)", "data_rate"),
    base("lat", "degrees latitude (WGS84)", "latitude"),
    base("lon", "degrees longitude (WGS84)", "longitude"),
    base("pH", "pH value (acidity)", "acidity"),
    base("dB", "decibel (logarithmic quantity)", "level"),
    base("dBW", "decibel relative to 1 W (power level)", "power_level"),
    base("Bspl", "bel (sound pressure level)", "sound_pressure_level"),
    base("count", "1 (counter value)", "count"),
    base("/", "1 (ratio, e.g. the value of a switch)", "ratio"),
    derived("%", "1 (ratio, not a percentage; use / instead)", "ratio", "/", [1.0, 0.0, 1.0]),
    base("%RH", "percentage (relative humidity)", "humidity"),
    base("%EL", "percentage (remaining battery energy level)", "battery_level"),
    base("EL", "seconds (remaining battery energy level)", "battery_time"),
    base("1/s", "1 per second (event rate)", "rate"),
    derived("1/min", "1 per minute (event rate, rpm)", "rate", "1/s", [1.0, 0.0, 60.0]),
    derived("beat/min", "1 per minute (heart rate)", "heart_rate", "1/s", [1.0, 0.0, 60.0]),
    base("beats", "1 (cumulative number of heart beats)", "heart_beats"),
    base("S/m", "siemens per meter (conductivity)", "conductivity"),
    derived("B", "byte (information content)", "information", "bit", [8.0, 0.0, 1.0]),
    base("VA", "volt-ampere (apparent power)", "apparent_power"),
    base("VAs", "volt-ampere second (apparent energy)", "apparent_energy"),
    base("var", "volt-ampere reactive (reactive power)", "reactive_power"),
    base("vars", "volt-ampere reactive second (reactive energy)", "reactive_energy"),
    base("J/m", "joule per meter (energy per distance)", "energy_per_distance"),
    base("kg/m3", "kilogram per cubic meter (mass concentration)", "concentration"),
    derived("deg", "degree (angle)", "angle", "rad", [std::f64::consts::PI, 0.0, 180.0]),
];

/// RFC 8798 §3: derived from a primary unit by a scale and an offset.
pub(super) static SECONDARY: &[Entry] = &[
    derived("ms", "millisecond", "duration", "s", [1.0, 0.0, 1_000.0]),
    derived("min", "minute", "duration", "s", [60.0, 0.0, 1.0]),
    derived("h", "hour", "duration", "s", [3_600.0, 0.0, 1.0]),
    derived("MHz", "megahertz", "frequency", "Hz", [1_000_000.0, 0.0, 1.0]),
    derived("kW", "kilowatt", "power", "W", [1_000.0, 0.0, 1.0]),
    derived("kVA", "kilovolt-ampere", "apparent_power", "VA", [1_000.0, 0.0, 1.0]),
    derived("kvar", "kilovar", "reactive_power", "var", [1_000.0, 0.0, 1.0]),
    derived("Ah", "ampere-hour", "charge", "C", [3_600.0, 0.0, 1.0]),
    derived("Wh", "watt-hour", "energy", "J", [3_600.0, 0.0, 1.0]),
    derived("kWh", "kilowatt-hour", "energy", "J", [3_600_000.0, 0.0, 1.0]),
    derived("varh", "var-hour", "reactive_energy", "vars", [3_600.0, 0.0, 1.0]),
    derived("kvarh", "kilovar-hour", "reactive_energy", "vars", [3_600_000.0, 0.0, 1.0]),
    derived("kVAh", "kilovolt-ampere-hour", "apparent_energy", "VAs", [3_600_000.0, 0.0, 1.0]),
    derived("Wh/km", "watt-hour per kilometer", "energy_per_distance", "J/m", [3.6, 0.0, 1.0]),
    derived("KiB", "kibibyte", "information", "bit", [8_192.0, 0.0, 1.0]),
    derived("GB", "gigabyte", "information", "bit", [1e9, 0.0, 1.0]),
    derived("Mbit/s", "megabit per second", "data_rate", "bit/s", [1_000_000.0, 0.0, 1.0]),
    derived("B/s", "byte per second", "data_rate", "bit/s", [8.0, 0.0, 1.0]),
    derived("MB/s", "megabyte per second", "data_rate", "bit/s", [8_000_000.0, 0.0, 1.0]),
    derived("mV", "millivolt", "voltage", "V", [1.0, 0.0, 1_000.0]),
    derived("mA", "milliampere", "current", "A", [1.0, 0.0, 1_000.0]),
    derived("dBm", "decibel (milliwatt)", "power_level", "dBW", [1.0, -30.0, 1.0]),
    derived("ug/m3", "microgram per cubic meter", "concentration", "kg/m3", [1.0, 0.0, 1e9]),
    derived("mm/h", "millimeter per hour", "speed", "m/s", [1.0, 0.0, 3_600_000.0]),
    derived("m/h", "meter per hour", "speed", "m/s", [1.0, 0.0, 3_600.0]),
    derived("ppm", "parts per million", "ratio", "/", [1.0, 0.0, 1_000_000.0]),
    derived("/100", "percent", "ratio", "/", [1.0, 0.0, 100.0]),
    derived("/1000", "permille", "ratio", "/", [1.0, 0.0, 1_000.0]),
    derived("hPa", "hectopascal", "pressure", "Pa", [100.0, 0.0, 1.0]),
    derived("mm", "millimeter", "length", "m", [1.0, 0.0, 1_000.0]),
    derived("cm", "centimeter", "length", "m", [1.0, 0.0, 100.0]),
    derived("km", "kilometer", "length", "m", [1_000.0, 0.0, 1.0]),
    derived("km/h", "kilometer per hour", "speed", "m/s", [1.0, 0.0, 3.6]),
];

/// Not registered, and not eligible for registration by RFC 8428 §12.1 (guidelines 5 and 8). Accepted because
/// recordings use them.
pub(super) static SPELLINGS: &[Entry] = &[
    derived("degF", "degrees Fahrenheit", "temperature", "Cel", [5.0, -160.0, 9.0]),
    derived("°F", "degrees Fahrenheit", "temperature", "Cel", [5.0, -160.0, 9.0]),
    derived("degC", "degrees Celsius (the registry says Cel)", "temperature", "Cel", [1.0, 0.0, 1.0]),
    derived("°C", "degrees Celsius (the registry says Cel)", "temperature", "Cel", [1.0, 0.0, 1.0]),
    derived("kPa", "kilopascal", "pressure", "Pa", [1_000.0, 0.0, 1.0]),
    derived("bar", "bar", "pressure", "Pa", [100_000.0, 0.0, 1.0]),
    derived("mbar", "millibar", "pressure", "Pa", [100.0, 0.0, 1.0]),
    derived("psi", "pound-force per square inch", "pressure", "Pa", [6_894.757293168361, 0.0, 1.0]),
    derived("mph", "mile per hour", "speed", "m/s", [0.44704, 0.0, 1.0]),
    derived("kHz", "kilohertz", "frequency", "Hz", [1_000.0, 0.0, 1.0]),
    derived("ppb", "parts per billion", "ratio", "/", [1.0, 0.0, 1e9]),
    derived("g/m3", "gram per cubic meter", "concentration", "kg/m3", [1.0, 0.0, 1_000.0]),
    derived("mg/m3", "milligram per cubic meter", "concentration", "kg/m3", [1.0, 0.0, 1_000_000.0]),
];
