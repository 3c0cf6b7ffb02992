#!/usr/bin/env python3
"""Reference statistics of windows of values, by NumPy and SciPy.

    pip install numpy scipy && python3 worker/tests/references/window.py

writes window.json beside itself: inputs (seconds, values with null for missing ones) and what is
to come out. Mean to quantiles are NumPy's, the median absolute deviation and the Theil-Sen slope
with its 95 % interval SciPy's, as are the ranks of the CUSUM and its level. Hampel, CUSUM and the
robust z-score have no function there; they are written down here as their module documents them.
"""

import json
from pathlib import Path

import numpy as np
from scipy import signal, stats

SIGMA = 1.482602218505602


def mad(values):
    return float(stats.median_abs_deviation(values))


def hampel(values):
    floor = 0.1 * mad(values)
    found = []
    for i, value in enumerate(values) if len(values) >= 3 else []:
        near = values[max(i - 5, 0) : i + 6]
        center = np.median(near)
        if abs(value - center) > 3 * SIGMA * max(mad(near), floor):
            found.append(i)
    return found


def change(ranks):
    """The CUSUM of ranks, the index after its largest magnitude, and whether it exceeds the 1 % level of a bridge."""
    n = len(ranks)
    ranks = ranks - ranks.mean()
    squares = float(np.sum(ranks**2))
    if n < 8 or squares == 0:
        return None
    sums = np.cumsum(ranks)[:-1]
    at = int(np.argmax(np.abs(sums))) + 1
    step = ranks - np.where(np.arange(n) < at, sums[at - 1] / at, -sums[at - 1] / (n - at))
    line = ranks - np.polyval(np.polyfit(np.arange(n), ranks, 1), np.arange(n))
    rest = step if np.sum(step**2) < 0.8 * np.sum(line**2) else line
    excess = 0.0
    if np.sum(rest**2) > 1e-9 * squares:
        phi = float(np.sum(rest[1:] * rest[:-1]) / np.sum(rest**2))
        phi = np.clip(phi + (2 + 4 * np.clip(phi, 0, 1)) / n, 0, 0.9)
        excess = float(np.sum(rest**2)) * 2 * phi / (1 - phi)
    deviation = np.sqrt(squares + excess)
    up, down = float(max(0.0, -sums.min()) / deviation), float(max(0.0, sums.max()) / deviation)
    return up, down, at, max(up, down) > stats.kstwobign.isf(0.01) - 0.5826 / np.sqrt(n)


def cusum(values):
    ranks = stats.rankdata(values)
    whole = change(ranks)
    if whole is None:
        return None
    since, part = None, whole
    while part and part[3]:
        since = part[2]
        part = change(ranks[:since])
    return {"up": whole[0], "down": whole[1], "since": since}


def robust_z(values):
    history = values[:-1][-256:]
    if len(history) < 8 or mad(history) == 0:
        return None
    return float((values[-1] - np.median(history)) / (SIGMA * mad(history)))


def expected(seconds, values):
    """Everything but the order of times is by the book; ours sorts, so this does too."""
    there = [i for i, value in enumerate(values) if value is not None]
    order = sorted(there, key=lambda i: seconds[i])
    t = np.array([seconds[i] for i in order], float)
    x = np.array([values[i] for i in order], float)
    slope = stats.theilslopes(x, t) if len(set(t)) > 1 else None
    drift = cusum(x)
    if drift and drift["since"] is not None:
        drift["since"] = order[drift["since"]]
    return {
        "count": len(x),
        "missing": len(values) - len(x),
        "mean": float(np.mean(x)),
        "std": float(np.std(x, ddof=1)) if len(x) > 1 else None,
        "min": float(x.min()),
        "max": float(x.max()),
        "median": float(np.median(x)),
        "mad": mad(x),
        "quantiles": {f"p{p:02}": float(np.quantile(x, p / 100)) for p in (1, 5, 25, 75, 95, 99)},
        "slope": float(slope.slope) if slope else None,
        "slope_interval": [float(slope.low_slope), float(slope.high_slope)] if slope else None,
        "robust_z": robust_z(x),
        "outliers": [order[i] for i in hampel(x)],
        "drift": drift,
    }


def cases():
    rng = np.random.default_rng(20261120)
    n = 300
    hour = 3600.0 * np.arange(n)
    noise = rng.normal(0, 1, n)
    yield "white noise", hour, noise
    yield "trend", hour, 20 + 2e-5 * hour + noise
    spiky = 20 + 0.3 * noise
    spiky[[17, 80, 81, 250]] += [9, -7, -8, 12]
    yield "outliers", hour, spiky
    yield "coarse sensor", hour, np.round(20 + noise, 0)
    yield "mostly stuck", hour, np.where(rng.random(n) < 0.05, 21.5, 20.0)
    yield "step", hour, np.where(hour > hour[200], 25.0, 20.0) + 0.1 * noise
    uneven = np.sort(rng.uniform(0, 1e6, n).round(3))
    yield "uneven times", uneven, 5 - 1e-6 * uneven + noise
    yield "unordered times", rng.permutation(uneven), noise
    repeated = np.sort(rng.integers(0, 60, n)).astype(float)
    yield "repeated times", repeated, np.round(repeated / 10 + noise, 1)
    gaps = [None if rng.random() < 0.2 else float(x) for x in noise]
    yield "missing values", hour, gaps
    yield "far from zero", hour, 1e9 + noise
    yield "large", hour, 1e100 * noise
    yield "small", hour, 1e-100 * noise
    yield "random walk, more pairs than are listed at once", 60.0 * np.arange(1500), np.round(np.cumsum(rng.normal(0, 1, 1500)), 3)
    yield "all equal", hour[:20], np.full(20, 7.5)
    yield "two", hour[:2], np.array([1.0, 2.0])
    yield "one", hour[:1], np.array([-3.25])
    yield "one instant", np.zeros(5), np.array([1.0, 5.0, 2.0, 4.0, 3.0])
    yield "nine", hour[:9], noise[:9]
    yield "autocorrelated", hour, signal.lfilter([1], [1, -0.6], rng.normal(0, 1, n))
    yield "stairs", hour, np.floor(hour / hour[100]) + 0.1 * noise


def main():
    rows = []
    for name, seconds, values in cases():
        seconds = [float(second) for second in seconds]
        values = [None if value is None else float(value) for value in values]
        row = {"name": name, "seconds": seconds, "values": values, "expected": expected(seconds, values)}
        rows.append(json.dumps(row, separators=(",", ":")))
    Path(__file__).with_suffix(".json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
