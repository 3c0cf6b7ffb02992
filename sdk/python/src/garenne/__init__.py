"""Runs tasks of a Garenne worker, and builds messages that publish tasks.

A program that the worker starts::

    import garenne

    @garenne.task("image.resize")
    def resize(cx, payload):
        return {"width": payload["width"]}

    if __name__ == "__main__":
        garenne.run()
"""

from ._context import Context
from ._errors import Cancelled, Reject, Retry, Snooze
from ._logs import LogHandler
from ._publish import Message, message
from ._registry import task
from ._run import run
from ._version import __version__

__all__ = [
    "Cancelled",
    "Context",
    "LogHandler",
    "Message",
    "Reject",
    "Retry",
    "Snooze",
    "__version__",
    "message",
    "run",
    "task",
]
