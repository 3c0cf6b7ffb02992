#!/usr/bin/env python3
"""Reference values of what temperature and humidity say together.

Written from the published formulas, in NumPy, apart from the Rust code that is tested against them:

- D. Sonntag (1990), "Important new values of the physical constants of 1986, vapour pressure
  formulations based on the ITS-90, and psychrometer formulae", Z. Meteorol. 70:340-344: Magnus
  constants over water, valid from -45 to 60 degrees Celsius;
- absolute humidity by the ideal gas law, water vapour's specific gas constant 461.5 J/(kg K);
- the heat index equation of the US National Weather Service (L. P. Rothfusz, SR 90-23, with both
  adjustments), from 40 degrees Fahrenheit on.

    pip install numpy && python3 worker/tests/references/derived.py

writes derived.json beside itself. Temperatures in degrees Celsius, humidity in percent, absolute
humidity in kilograms per cubic metre; null where the formula has no answer.
"""

import json
import math
from pathlib import Path

import numpy as np


def dew_point(t, rh):
    if not (-45 <= t <= 60 and 0 < rh <= 100):
        return None
    gamma = np.log(rh / 100) + 17.62 * t / (243.12 + t)
    return 243.12 * gamma / (17.62 - gamma)


def absolute_humidity(t, rh):
    if not (-45 <= t <= 60 and 0 < rh <= 100):
        return None
    vapour_pressure = rh / 100 * 611.2 * np.exp(17.62 * t / (243.12 + t))
    return vapour_pressure / (461.5 * (t + 273.15))


def heat_index(t, rh):
    f = t * 9 / 5 + 32
    if not (40 <= f <= 140 and 0 <= rh <= 100):
        return None
    # The mean of the temperature and Steadman's formula, as the Service's own calculator has it.
    index = 0.5 * (f + 61.0 + ((f - 68.0) * 1.2) + (rh * 0.094))
    if index >= 80:
        index = (
            -42.379
            + 2.04901523 * f
            + 10.14333127 * rh
            - 0.22475541 * f * rh
            - 0.00683783 * f**2
            - 0.05481717 * rh**2
            + 0.00122874 * f**2 * rh
            + 0.00085282 * f * rh**2
            - 0.00000199 * f**2 * rh**2
        )
        if rh < 13 and 80 <= f <= 112:
            index -= ((13 - rh) / 4) * math.sqrt((17 - abs(f - 95)) / 17)
        elif rh > 85 and 80 <= f <= 87:
            index += ((rh - 85) / 10) * ((87 - f) / 5)
    return (index - 32) * 5 / 9


def main():
    temperatures = np.concatenate([np.arange(-50, 66, 2.5), [26.7, 27.3, 29.95, 33.3, 41.7, 44.4, 4.5, -45.0]])
    humidities = np.concatenate([[0, 0.5, 1], np.arange(5, 101, 5), [12.9, 13, 85, 85.1, 99.9, 100.1]])
    rng = np.random.default_rng(20261120)
    pairs = [(float(t), float(rh)) for t in temperatures for rh in humidities]
    pairs += [(float(t), float(rh)) for t, rh in zip(rng.uniform(-45, 60, 500), rng.uniform(0.1, 100, 500))]
    rows = [
        [t, rh] + [None if x is None else float(x) for x in (dew_point(t, rh), absolute_humidity(t, rh), heat_index(t, rh))]
        for t, rh in pairs
    ]
    out = Path(__file__).with_suffix(".json")
    columns = ["temperature", "humidity", "dew_point", "absolute_humidity", "heat_index"]
    lines = ",\n".join(json.dumps(row) for row in rows)
    out.write_text(f'{{"columns": {json.dumps(columns)},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
