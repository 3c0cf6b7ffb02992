"""A script without decorators."""

import sys

import garenne


def whatever(cx, payload):
    return [cx.kind, payload]


if __name__ == "__main__":
    if "tasks" in sys.argv:
        garenne.task("only.this")(whatever)
        garenne.run()
    else:
        garenne.run(whatever)
