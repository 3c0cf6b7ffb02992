#!/usr/bin/env python3
"""Sends readings over the gateway's TCP line protocol, with only Python's standard library.

    python3 send_lines.py 127.0.0.1 8080

Lines are sent without waiting for answers, which have the order of the lines. A line that is answered with `busy` or
`unavailable`, or not at all, is sent again. A reading with a time keeps its id, so a repetition has no second effect.
"""

import json
import socket
import sys
import time
from datetime import datetime, timedelta, timezone

RETRY = {"busy", "unavailable", "rate-limited", "timeout"}


def send(host: str, port: int, readings: list[dict]) -> list[dict]:
    """Sends readings and returns those to be sent again."""
    again = []
    with socket.create_connection((host, port), timeout=30) as connection:
        lines = connection.makefile("rw", encoding="utf-8", newline="\n")
        for reading in readings:
            lines.write(json.dumps(reading) + "\n")
        lines.flush()
        for reading in readings:
            word, _, rest = lines.readline().rstrip("\n").partition(" ")
            code = rest.partition(" ")[0]
            if word == "ok":
                print("stored", rest)
            elif word == "error" and code not in RETRY:
                print("refused", rest, file=sys.stderr)
            else:
                again.append(reading)
    return again


def main() -> int:
    host, port = sys.argv[1], int(sys.argv[2])
    start = datetime.now(timezone.utc)
    waiting = [
        {
            "device": "python-2",
            "metric": "temperature",
            "value": 20 + n / 10,
            "unit": "Cel",
            "time": (start + timedelta(seconds=n)).isoformat(),
        }
        for n in range(10)
    ]
    for _ in range(10):
        try:
            waiting = send(host, port, waiting)
        except OSError as error:
            print(f"no answer ({error}), sending again", file=sys.stderr)
        if not waiting:
            return 0
        time.sleep(1)
    return 1


if __name__ == "__main__":
    sys.exit(main())
