#!/usr/bin/env python3
"""Generates recording.csv: half a day in a small greenhouse, with plausible values.

    python3 deploy/demo/recording.py

Six devices measure temperature and relative humidity once a minute from five in the morning. The
sun warms the house, a vent opens at noon, and each device has its own place, noise and clock. Some
rows are missing, as with lossy radio links. There is one fault to be found: the window above
greenhouse-5 is left open from 10:30 to 11:50.

The random generator has a fixed seed, so the file is always the same. Only the standard library is used.
"""

import math
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

SEED = 20260504
START = datetime(2026, 5, 4, 5, 0, 0, tzinfo=timezone.utc)
MINUTES = 500
# Temperature offset in degrees, share of the sun, seconds past the minute.
DEVICES = {
    "greenhouse-1": (0.0, 1.00, 3),
    "greenhouse-2": (0.4, 0.95, 11),
    "greenhouse-3": (-0.3, 1.10, 19),
    "greenhouse-4": (0.2, 0.80, 27),
    "greenhouse-5": (-0.6, 0.90, 41),
    "greenhouse-6": (0.1, 1.05, 52),
}
LOST_ROWS = 0.004
WINDOW_OPEN = (330, 410)


def draught(device, minute):
    """The temperature drop at greenhouse-5, in degrees: fast while the window is open, slow recovery afterwards."""
    begin, end = WINDOW_OPEN
    if device != "greenhouse-5" or minute < begin:
        return 0.0
    cooled = 7.0 * (1 - math.exp(-(min(minute, end) - begin) / 6))
    return cooled if minute <= end else cooled * math.exp(-(minute - end) / 25)


def main():
    rng = random.Random(SEED)
    drift = dict.fromkeys(DEVICES, 0.0)
    rows = []
    for minute in range(MINUTES):
        hours = 5 + minute / 60
        sun = max(0.0, math.sin(math.pi * (hours - 5.6) / 14.5)) ** 1.3
        vent = 3.0 * max(0.0, math.tanh((hours - 12) * 2))
        for device, (offset, share, second) in DEVICES.items():
            drift[device] = 0.97 * drift[device] + rng.gauss(0, 0.05)
            air = 16.5 + 13.0 * sun * share - vent + offset + drift[device] - draught(device, minute)
            # Nearly constant vapour pressure, somewhat higher in daylight.
            vapour = 14.0 + 4.5 * sun - 0.8 * vent
            saturation = 6.112 * math.exp(17.62 * air / (243.12 + air))
            humidity = min(99.5, 100 * vapour / saturation + rng.gauss(0, 0.4))
            temperature = air + rng.gauss(0, 0.04)
            if rng.random() < LOST_ROWS:
                continue
            time = START + timedelta(minutes=minute, seconds=second)
            rows.append(f"{time:%Y-%m-%dT%H:%M:%SZ},{device},{temperature:.2f},{humidity:.1f}")
    text = "\n".join(["time,device,temperature_C,humidity_pct", *rows]) + "\n"
    Path(__file__).with_name("recording.csv").write_text(text)


if __name__ == "__main__":
    main()
