"""Log lines: on standard error, or as frames."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Optional

from ._context import Context, current
from ._errors import shorten
from ._frames import frame

if TYPE_CHECKING:
    from ._frames import Channel

# Set while `run` runs.
channel: "Optional[Channel]" = None


def _task_of(record: logging.LogRecord) -> Optional[Context]:
    return getattr(record, "garenne", None) or current.get()


class OneLine(logging.Formatter):
    """A record is one line, because the worker reads lines. It names the task that it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record).replace("\r", "").replace("\n", "\\n")
        cx = _task_of(record)
        return line if cx is None else f"{line} id={cx.id} attempt={cx.attempt}"


class LogHandler(logging.Handler):
    """Sends records as `log` frames, so that the worker logs them with their level and task."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if channel is None:
                print(text, file=sys.stderr)
                return
            by_level = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))
            level = next((name for least, name in by_level if record.levelno >= least), "debug")
            cx = _task_of(record)
            task = {} if cx is None else {"id": cx.id, "attempt": cx.attempt}
            channel.write(frame({"type": "log", "level": level, "message": shorten(text), **task}))
        except Exception:
            self.handleError(record)


def configure() -> None:
    """Log lines go to standard error, unless the program configured something else."""
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(OneLine("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    # Pipes are buffered in blocks by default.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
