#!/usr/bin/env python3
"""Draws rows of a benchmark's JSON as horizontal bars: median, with a line from the least to the most.

    ./dev bench gateway --json gateway.json && docs/charts/bars.py gateway.json 'gateway/receipt/*/per_cpu_s' out.svg
"""

import fnmatch
import html
import json
import sys

BAR, GAP, LABEL, WIDTH = 18, 8, 300, 420


def main(source, pattern, target):
    report = json.load(open(source, encoding="utf-8"))
    named = (row for row in report["rows"] if fnmatch.fnmatch(row["name"], pattern))
    # Ratios have no place on an axis of figures.
    rows = [row for row in named if row["unit"] != "ratio"]
    if not rows:
        sys.exit(f"no row of {source} is called {pattern}")
    most = max(row["max"] for row in rows) or 1
    # What all names begin and end with goes without saying.
    paths = [row["name"].split("/") for row in rows]
    head = next((at for at, words in enumerate(zip(*paths)) if len(set(words)) > 1), 0)
    tail = next((at for at, words in enumerate(zip(*(path[::-1] for path in paths))) if len(set(words)) > 1), 0)
    labels = ["/".join(path[head : len(path) - tail]) or path[-1] for path in paths]
    height = len(rows) * (BAR + GAP) + 34
    machine = report["machine"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDTH + 110}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="8" y="16" fill="#444">{html.escape(rows[0]["unit"])}, median of {rows[0]["runs"]};'
        f' {machine["cpus"]} CPUs, {machine["os"]}</text>',
    ]
    for at, (row, label) in enumerate(zip(rows, labels)):
        y = 26 + at * (BAR + GAP)
        end = {key: LABEL + WIDTH * row[key] / most for key in ("min", "median", "max")}
        middle = y + BAR / 2
        parts += [
            f'<text x="{LABEL - 6}" y="{y + 13}" text-anchor="end">{html.escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{end["median"] - LABEL:.1f}" height="{BAR}" fill="#5b8c5a"/>',
            f'<line x1="{end["min"]:.1f}" x2="{end["max"]:.1f}" y1="{middle}" y2="{middle}" stroke="#222"/>',
            f'<text x="{end["max"] + 6:.1f}" y="{y + 13}">{figure(row["median"])}</text>',
        ]
    open(target, "w", encoding="utf-8").write("\n".join([*parts, "</svg>"]) + "\n")


def figure(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
