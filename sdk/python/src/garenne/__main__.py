"""`python -m garenne module` and `python -m garenne module:function`."""

from __future__ import annotations

import argparse
import importlib
import signal

from . import _registry, _run


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also while the module is imported
    parser = argparse.ArgumentParser(prog="python -m garenne", description="Runs tasks for a Garenne worker.")
    parser.add_argument("handler", metavar="MODULE[:FUNCTION]", help="a module with @garenne.task, or one function")
    parser.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="tasks at a time, 1 to 1000 (default 1)"
    )
    parser.add_argument(
        "--call",
        action="store_true",
        help="the function takes the arguments of calls of Celery's senders; a Celery task always does",
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.concurrency <= 1000:
        parser.error(f"--concurrency is {arguments.concurrency}; expected 1 to 1000")
    module, _, path = arguments.handler.partition(":")
    found = importlib.import_module(module)
    if not path:
        if not _registry.registered:
            parser.error(f"{module} has no function that is decorated with @garenne.task")
        _run.run(concurrency=arguments.concurrency)
        return
    for name in path.split("."):
        if not hasattr(found, name):
            parser.error(f"{module} has no {path}")
        found = getattr(found, name)
    _run.run(found, concurrency=arguments.concurrency, call=arguments.call)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
