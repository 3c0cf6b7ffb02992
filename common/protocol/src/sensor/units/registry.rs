//! The table of units.

/// The origin of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// RFC 8428 §12.1 and RFC 8798 §2: the units of SenML packs.
    Primary,
    /// RFC 8798 §3: derived from a primary unit by a scale and an offset.
    Secondary,
    /// Not registered, and not eligible for registration by RFC 8428 §12.1 (guidelines 5 and 8). Accepted because
    /// recordings use them.
    Spelling,
}

/// A unit. `base value = (value * multiply + add) / divide`. The factor is a fraction of two numbers, because a
/// factor such as 0.01 has no exact double, but a division by 100 is correctly rounded.
pub(super) struct Entry {
    pub(super) symbol: &'static str,
    pub(super) description: &'static str,
    pub(super) quantity: &'static str,
    pub(super) group: Group,
    /// The primary unit that the registry derives this one from.
    pub(super) primary: &'static str,
    /// The unit that all conversions between units of this quantity go through.
    pub(super) base: &'static str,
    pub(super) multiply: f64,
    pub(super) add: f64,
    pub(super) divide: f64,
}

const fn entry(
    group: Group,
    [symbol, description, quantity]: [&'static str; 3],
    [primary, base]: [&'static str; 2],
    [multiply, add, divide]: [f64; 3],
) -> Entry {
    Entry { symbol, description, quantity, group, primary, base, multiply, add, divide }
}

/// A primary unit that is the base unit of its quantity.
const fn base(symbol: &'static str, description: &'static str, quantity: &'static str) -> Entry {
    entry(Group::Primary, [symbol, description, quantity], [symbol, symbol], [1.0, 0.0, 1.0])
}

/// A primary unit of a quantity that has another base unit.
const fn primary(
    symbol: &'static str,
    description: &'static str,
    quantity: &'static str,
    units: [&'static str; 2],
    factor: [f64; 3],
) -> Entry {
    entry(Group::Primary, [symbol, description, quantity], units, factor)
}

const fn secondary(
    symbol: &'static str,
    description: &'static str,
    quantity: &'static str,
    units: [&'static str; 2],
    factor: [f64; 3],
) -> Entry {
    entry(Group::Secondary, [symbol, description, quantity], units, factor)
}

const fn spelling(
    symbol: &'static str,
    description: &'static str,
    quantity: &'static str,
    units: [&'static str; 2],
    factor: [f64; 3],
) -> Entry {
    entry(Group::Spelling, [symbol, description, quantity], units, factor)
}

/// Columns: symbol, description, quantity, [primary unit, base unit], [multiply, add, divide].
pub(super) static ENTRIES: &[Entry] = &[
    // RFC 8428, section 12.1, and RFC 8798, section 2.
    base("m", "meter", "length"),
    base("kg", "kilogram", "mass"),
    primary("g", "gram", "mass", ["g", "kg"], [1.0, 0.0, 1_000.0]),
    base("s", "second", "duration"),
    base("A", "ampere", "current"),
    primary("K", "kelvin", "temperature", ["K", "Cel"], [1.0, -273.15, 1.0]),
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
    primary("l", "liter (volume)", "volume", ["l", "m3"], [1.0, 0.0, 1_000.0]),
    base("m/s", "meter per second (velocity)", "speed"),
    base("m/s2", "meter per square second (acceleration)", "acceleration"),
    base("m3/s", "cubic meter per second (flow rate)", "flow"),
    primary("l/s", "liter per second (flow rate)", "flow", ["l/s", "m3/s"], [1.0, 0.0, 1_000.0]),
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
    primary("%", "1 (ratio, not a percentage; use / instead)", "ratio", ["%", "/"], [1.0, 0.0, 1.0]),
    base("%RH", "percentage (relative humidity)", "humidity"),
    base("%EL", "percentage (remaining battery energy level)", "battery_level"),
    base("EL", "seconds (remaining battery energy level)", "battery_time"),
    base("1/s", "1 per second (event rate)", "rate"),
    primary("1/min", "1 per minute (event rate, rpm)", "rate", ["1/min", "1/s"], [1.0, 0.0, 60.0]),
    primary("beat/min", "1 per minute (heart rate)", "heart_rate", ["beat/min", "1/s"], [1.0, 0.0, 60.0]),
    base("beats", "1 (cumulative number of heart beats)", "heart_beats"),
    base("S/m", "siemens per meter (conductivity)", "conductivity"),
    primary("B", "byte (information content)", "information", ["B", "bit"], [8.0, 0.0, 1.0]),
    base("VA", "volt-ampere (apparent power)", "apparent_power"),
    base("VAs", "volt-ampere second (apparent energy)", "apparent_energy"),
    base("var", "volt-ampere reactive (reactive power)", "reactive_power"),
    base("vars", "volt-ampere reactive second (reactive energy)", "reactive_energy"),
    base("J/m", "joule per meter (energy per distance)", "energy_per_distance"),
    base("kg/m3", "kilogram per cubic meter (mass concentration)", "concentration"),
    primary("deg", "degree (angle)", "angle", ["deg", "rad"], [std::f64::consts::PI, 0.0, 180.0]),
    // RFC 8798, section 3.
    secondary("ms", "millisecond", "duration", ["s", "s"], [1.0, 0.0, 1_000.0]),
    secondary("min", "minute", "duration", ["s", "s"], [60.0, 0.0, 1.0]),
    secondary("h", "hour", "duration", ["s", "s"], [3_600.0, 0.0, 1.0]),
    secondary("MHz", "megahertz", "frequency", ["Hz", "Hz"], [1_000_000.0, 0.0, 1.0]),
    secondary("kW", "kilowatt", "power", ["W", "W"], [1_000.0, 0.0, 1.0]),
    secondary("kVA", "kilovolt-ampere", "apparent_power", ["VA", "VA"], [1_000.0, 0.0, 1.0]),
    secondary("kvar", "kilovar", "reactive_power", ["var", "var"], [1_000.0, 0.0, 1.0]),
    secondary("Ah", "ampere-hour", "charge", ["C", "C"], [3_600.0, 0.0, 1.0]),
    secondary("Wh", "watt-hour", "energy", ["J", "J"], [3_600.0, 0.0, 1.0]),
    secondary("kWh", "kilowatt-hour", "energy", ["J", "J"], [3_600_000.0, 0.0, 1.0]),
    secondary("varh", "var-hour", "reactive_energy", ["vars", "vars"], [3_600.0, 0.0, 1.0]),
    secondary("kvarh", "kilovar-hour", "reactive_energy", ["vars", "vars"], [3_600_000.0, 0.0, 1.0]),
    secondary("kVAh", "kilovolt-ampere-hour", "apparent_energy", ["VAs", "VAs"], [3_600_000.0, 0.0, 1.0]),
    secondary("Wh/km", "watt-hour per kilometer", "energy_per_distance", ["J/m", "J/m"], [3.6, 0.0, 1.0]),
    secondary("KiB", "kibibyte", "information", ["B", "bit"], [8_192.0, 0.0, 1.0]),
    secondary("GB", "gigabyte", "information", ["B", "bit"], [1e9, 0.0, 1.0]),
    secondary("Mbit/s", "megabit per second", "data_rate", ["bit/s", "bit/s"], [1_000_000.0, 0.0, 1.0]),
    secondary("B/s", "byte per second", "data_rate", ["bit/s", "bit/s"], [8.0, 0.0, 1.0]),
    secondary("MB/s", "megabyte per second", "data_rate", ["bit/s", "bit/s"], [8_000_000.0, 0.0, 1.0]),
    secondary("mV", "millivolt", "voltage", ["V", "V"], [1.0, 0.0, 1_000.0]),
    secondary("mA", "milliampere", "current", ["A", "A"], [1.0, 0.0, 1_000.0]),
    secondary("dBm", "decibel (milliwatt)", "power_level", ["dBW", "dBW"], [1.0, -30.0, 1.0]),
    secondary("ug/m3", "microgram per cubic meter", "concentration", ["kg/m3", "kg/m3"], [1.0, 0.0, 1e9]),
    secondary("mm/h", "millimeter per hour", "speed", ["m/s", "m/s"], [1.0, 0.0, 3_600_000.0]),
    secondary("m/h", "meter per hour", "speed", ["m/s", "m/s"], [1.0, 0.0, 3_600.0]),
    secondary("ppm", "parts per million", "ratio", ["/", "/"], [1.0, 0.0, 1_000_000.0]),
    secondary("/100", "percent", "ratio", ["/", "/"], [1.0, 0.0, 100.0]),
    secondary("/1000", "permille", "ratio", ["/", "/"], [1.0, 0.0, 1_000.0]),
    secondary("hPa", "hectopascal", "pressure", ["Pa", "Pa"], [100.0, 0.0, 1.0]),
    secondary("mm", "millimeter", "length", ["m", "m"], [1.0, 0.0, 1_000.0]),
    secondary("cm", "centimeter", "length", ["m", "m"], [1.0, 0.0, 100.0]),
    secondary("km", "kilometer", "length", ["m", "m"], [1_000.0, 0.0, 1.0]),
    secondary("km/h", "kilometer per hour", "speed", ["m/s", "m/s"], [1.0, 0.0, 3.6]),
    // Not registered.
    spelling("degF", "degrees Fahrenheit", "temperature", ["Cel", "Cel"], [5.0, -160.0, 9.0]),
    spelling("°F", "degrees Fahrenheit", "temperature", ["Cel", "Cel"], [5.0, -160.0, 9.0]),
    spelling(
        "degC",
        "degrees Celsius (the registry says Cel)",
        "temperature",
        ["Cel", "Cel"],
        [1.0, 0.0, 1.0],
    ),
    spelling("°C", "degrees Celsius (the registry says Cel)", "temperature", ["Cel", "Cel"], [1.0, 0.0, 1.0]),
    spelling("kPa", "kilopascal", "pressure", ["Pa", "Pa"], [1_000.0, 0.0, 1.0]),
    spelling("bar", "bar", "pressure", ["Pa", "Pa"], [100_000.0, 0.0, 1.0]),
    spelling("mbar", "millibar", "pressure", ["Pa", "Pa"], [100.0, 0.0, 1.0]),
    spelling("psi", "pound-force per square inch", "pressure", ["Pa", "Pa"], [6_894.757293168361, 0.0, 1.0]),
    spelling("mph", "mile per hour", "speed", ["m/s", "m/s"], [0.44704, 0.0, 1.0]),
    spelling("kHz", "kilohertz", "frequency", ["Hz", "Hz"], [1_000.0, 0.0, 1.0]),
    spelling("ppb", "parts per billion", "ratio", ["/", "/"], [1.0, 0.0, 1e9]),
    spelling("g/m3", "gram per cubic meter", "concentration", ["kg/m3", "kg/m3"], [1.0, 0.0, 1_000.0]),
    spelling(
        "mg/m3",
        "milligram per cubic meter",
        "concentration",
        ["kg/m3", "kg/m3"],
        [1.0, 0.0, 1_000_000.0],
    ),
];
