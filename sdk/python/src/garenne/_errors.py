"""What a handler raises to say what becomes of the task, and how errors are described to the worker."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Optional, Union

Seconds = Union[int, float, timedelta]

# The worker keeps 1,000 bytes of an error. A head has at most 65,536 bytes, and JSON may need six for a character.
MAX_TEXT = 8_000


def milliseconds(value: Seconds, name: str) -> int:
    """The duration in milliseconds, rounded up so that a short one does not become none."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name} is {value!r}; expected a number of seconds from 0")
    return -int(-seconds * 1000 // 1)


class Reject(Exception):
    """The task failed for good: it becomes a dead letter.

    `reason` is "rejected", or "invalid-payload" if the payload is to blame.
    """

    def __init__(self, error: object = "rejected", *, reason: str = "rejected") -> None:
        if reason not in ("rejected", "invalid-payload"):
            raise ValueError(f'reason is {reason!r}; expected "rejected" or "invalid-payload"')
        super().__init__(error)
        self.reason = reason


class Retry(Exception):
    """The attempt failed. The task is retried while it has attempts left, not before `after` seconds."""

    def __init__(self, error: object = None, *, after: Optional[Seconds] = None) -> None:
        super().__init__(*([] if error is None else [error]))
        self.after_ms = None if after is None else milliseconds(after, "after")

    def __str__(self) -> str:
        if self.args:
            return str(self.args[0])
        return "retry" if self.__cause__ is None else describe(self.__cause__)


class Snooze(Exception):
    """The task cannot run now. It is run again after `after` seconds, and no attempt is spent."""

    def __init__(self, after: Seconds) -> None:
        super().__init__(after)
        self.after_ms = milliseconds(after, "after")


class Cancelled(BaseException):
    """The worker asked the task to stop: raised by `Context.check` and `Context.progress`.

    It is no `Exception`, so that `except Exception` in a loop does not hold up the cancellation.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cancelled: {self.reason}"


def describe(error: BaseException) -> str:
    """The type, the message and the innermost frame."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        text = str(error)
    except Exception:  # an exception whose __str__ is broken
        text = "(no message)"
    frame = error.__traceback__
    if frame is None:
        return f"{name}: {text}" if text else name
    while frame.tb_next is not None:
        frame = frame.tb_next
    code = frame.tb_frame.f_code
    place = f"{os.path.basename(code.co_filename)}:{frame.tb_lineno} in {code.co_name}"
    return f"{name}: {text} ({place})" if text else f"{name} ({place})"


def shorten(text: str) -> str:
    """The text within the bounds of a frame, without its middle if it is longer."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2 - 2
    return f"{text[:half]} … {text[-half:]}"
