#!/usr/bin/env python3
"""Reference spectra of vibrations, by SciPy.

    pip install numpy scipy && python3 worker/tests/references/spectrum.py

writes spectrum.json beside itself: samples (base64 of little-endian 32-bit floats, as a task may
carry them) and what is to come out. Densities are `scipy.signal.welch`'s, envelopes those of
`scipy.signal.hilbert`, kurtosis `scipy.stats.kurtosis(fisher=False)`; peaks are found in SciPy's
density with `find_peaks`, their frequency refined by a parabola through the logarithms.
"""

import base64
import json
from pathlib import Path

import numpy as np
from scipy import signal, stats


def peaks(density, resolution):
    floor = 4 * np.sort(density)[(len(density) - 1) // 2]
    # The last frequency may be a peak.
    found = [i for i in signal.find_peaks(np.append(density, 0))[0] if density[i] > floor]
    found = sorted(found, key=lambda i: -density[i])[:10]
    rows = []
    for i in found:
        offset = 0
        if i + 1 < len(density):
            left, middle, right = np.log(density[i - 1 : i + 2])
            offset = 0.5 * (left - right) / (left - 2 * middle + right)
        rows.append({"hz": (i + offset) * resolution, "power": density[i]})
    return rows


def expected(x, rate, segment, band):
    _, density = signal.welch(x, rate, nperseg=segment)
    inside = x
    if band:
        spectrum = np.fft.rfft(x)
        frequency = np.fft.rfftfreq(len(x), 1 / rate)
        spectrum[(frequency < band[0]) | (frequency > band[1])] = 0
        inside = np.fft.irfft(spectrum, len(x))
    envelope = np.abs(signal.hilbert(inside))
    _, envelope_density = signal.welch(envelope, rate, nperseg=segment)
    resolution = rate / segment
    rms = np.sqrt(np.mean(x**2))
    return {
        "mean": np.mean(x),
        "rms": rms,
        "peak": np.max(np.abs(x)),
        "crest_factor": np.max(np.abs(x)) / rms,
        "kurtosis": stats.kurtosis(x, fisher=False),
        "resolution": resolution,
        "density": density.tolist(),
        "peaks": peaks(density, resolution),
        "envelope": envelope.tolist(),
        "envelope_peaks": peaks(envelope_density, resolution),
    }


def cases():
    rng = np.random.default_rng(20261120)

    def time(count, rate):
        return np.arange(count) / rate

    t = time(4096, 1000)
    tones = 2 * np.sin(2 * np.pi * 50.3 * t) + 0.5 * np.sin(2 * np.pi * 212.7 * t + 1) + 0.1 * rng.normal(size=len(t))
    yield "two tones in noise", 1000.0, tones, 512, None
    yield "odd segment, offset", 1000.0, 9.81 + tones[:1500], 255, None
    yield "prime count", 44100.0, rng.normal(size=997), 128, None
    yield "one segment", 100.0, rng.normal(size=200), 200, None
    yield "large", 1000.0, 1e30 * tones[:1024], 256, None
    # A defect of the outer ring: a resonance at 3.1 kHz struck 107.4 times a second.
    t = time(8192, 12000)
    strikes = (t * 107.4) % 1 / 107.4
    ringing = np.exp(-strikes * 900) * np.sin(2 * np.pi * 3100 * strikes)
    vibration = ringing + 0.3 * np.sin(2 * np.pi * 29.95 * t) + 0.1 * rng.normal(size=len(t))
    yield "bearing", 12000.0, vibration, 4096, None
    yield "bearing, its resonance only", 12000.0, vibration, 4096, [2500.0, 3700.0]


def main():
    rows = []
    for name, rate, samples, segment, band in cases():
        samples = samples.astype("<f4")
        row = {
            "name": name,
            "sample_rate": rate,
            "segment": segment,
            "envelope_band": band,
            "samples": base64.b64encode(samples.tobytes()).decode(),
            "expected": expected(samples.astype(float), rate, segment, band),
        }
        # Every sixteenth value of the envelope: enough to know it by.
        row["expected"]["envelope"] = row["expected"]["envelope"][::16]
        rows.append(json.dumps(row, separators=(",", ":")))
    Path(__file__).with_suffix(".json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
