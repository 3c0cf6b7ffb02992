"""What a handler knows about its task, and what it can tell the worker while it runs."""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone
from logging import Logger, LoggerAdapter, getLogger
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Union

from ._errors import Cancelled, Reject, Seconds, milliseconds
from ._frames import encode, frame

if TYPE_CHECKING:
    from typing import Protocol

    class Cancellation(Protocol):
        """Learns of a cancellation. It sets `Context._cancelled_by`."""

        def wait(self, cx: "Context", seconds: float) -> None: ...

    class Writer(Protocol):
        def write(self, data: bytes) -> None: ...

        def check_body(self, body: bytes, what: str) -> bytes: ...

    _Log = LoggerAdapter[Logger]
else:
    _Log = LoggerAdapter

Header = Union[str, int, float, bool]

# A loop may report after every item. The worker shows the progress a few times a second.
PROGRESS_INTERVAL = 0.1

current: "ContextVar[Optional[Context]]" = ContextVar("garenne_task", default=None)

_logger = getLogger("garenne.task")
_rfc3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class Context:
    """A run of a task."""

    __slots__ = (
        "id",
        "kind",
        "attempt",
        "_head",
        "_writer",
        "_cancellation",
        "_received",
        "_cancelled_by",
        "_answered",
        "_reported",
        "_log",
    )

    #: The task's id: the same in every attempt.
    id: str
    kind: str
    #: Counts from 1.
    attempt: int

    def __init__(self, head: Dict[str, Any], writer: "Writer", cancellation: "Cancellation") -> None:
        self.id = head["id"]
        self.kind = head["kind"]
        self.attempt = head["attempt"]
        self._head = head
        self._writer = writer
        self._cancellation = cancellation
        self._received = time.monotonic()
        self._cancelled_by: Optional[str] = None
        self._answered = False
        self._reported = float("-inf")
        self._log: Optional[_Log] = None

    def __repr__(self) -> str:
        return f"<garenne.Context {self.kind} id={self.id} attempt={self.attempt}>"

    @property
    def lane(self) -> Optional[str]:
        return self._head.get("lane")

    @property
    def group(self) -> Optional[str]:
        return self._head.get("group")

    @property
    def key(self) -> Optional[str]:
        return self._head.get("key")

    @property
    def content_type(self) -> str:
        return self._head.get("content_type") or "application/json"

    @property
    def headers(self) -> Mapping[str, Header]:
        """The message's own headers."""
        return self._head.get("headers") or {}

    @property
    def traceparent(self) -> Optional[str]:
        """The W3C trace context."""
        return self._head.get("traceparent")

    @property
    def tracestate(self) -> Optional[str]:
        return self._head.get("tracestate")

    @property
    def enqueued_at(self) -> Optional[datetime]:
        """When the task was published, if the publisher said so."""
        found = _rfc3339.fullmatch(self._head.get("enqueued_at") or "")
        if found is None:
            return None
        date, clock, fraction, zone = found.groups()
        offset = "+00:00" if zone in "Zz" else zone
        return datetime.fromisoformat(f"{date}T{clock}.{(fraction or '').ljust(6, '0')}{offset}")

    @property
    def remaining(self) -> Optional[float]:
        """Seconds until the deadline, negative after it. None without a deadline."""
        left = self._head.get("deadline_ms")
        return None if left is None else left / 1000 - (time.monotonic() - self._received)

    @property
    def deadline(self) -> Optional[datetime]:
        """When the worker will cancel the task."""
        remaining = self.remaining
        return None if remaining is None else datetime.now(timezone.utc) + timedelta(seconds=remaining)

    @property
    def cancelled(self) -> bool:
        """Whether the worker asked the task to stop."""
        return self.wait(0)

    @property
    def cancel_reason(self) -> Optional[str]:
        """Why the task is cancelled: "deadline", "stopped" or "shutdown". None if it is not."""
        return self._cancelled_by if self.wait(0) else None

    def wait(self, seconds: Seconds) -> bool:
        """Sleeps until the task is cancelled or the time is over. Returns whether it is cancelled."""
        if self._cancelled_by is None and not self._answered:
            self._cancellation.wait(self, milliseconds(seconds, "seconds") / 1000)
        return self._cancelled_by is not None

    def check(self) -> None:
        """Raises `Cancelled` if the worker asked the task to stop."""
        if self.wait(0):
            raise Cancelled(self._cancelled_by or "stopped")

    def progress(self, done: float) -> None:
        """Reports how much of the work is done, from 0 to 1. Raises `Cancelled` as `check` does.

        At most ten reports a second are sent, and always the one of 1.
        """
        self.check()
        done = min(1.0, max(0.0, float(done)))
        now = time.monotonic()
        if not self._answered and (done == 1.0 or now - self._reported >= PROGRESS_INTERVAL):
            self._reported = now
            self._writer.write(frame({**self._run("progress"), "done": done}))

    def follow_up(
        self,
        kind: str,
        payload: Any = None,
        *,
        id: Optional[str] = None,
        delay: Optional[Seconds] = None,
        key: Optional[str] = None,
        group: Optional[str] = None,
        timeout: Optional[Seconds] = None,
        headers: Optional[Mapping[str, Header]] = None,
    ) -> None:
        """A task that is published once this one has succeeded. Times are in seconds.

        Raises `Reject` if it cannot be sent, because a repetition would have the same result.
        """
        if self._answered:
            raise RuntimeError(f"the task {self.id} has ended; it can have no further follow-ups")
        what = f"the payload of the follow-up {kind}"
        body = self._writer.check_body(encode(payload, what), what)
        optional = {
            "task_id": id,
            "delay_ms": None if delay is None else milliseconds(delay, "delay"),
            "key": key,
            "group": group,
            "timeout_ms": None if timeout is None else milliseconds(timeout, "timeout"),
            "headers": None if headers is None else dict(headers),
        }
        given = {name: value for name, value in optional.items() if value is not None}
        try:
            data = frame({**self._run("follow_up"), "kind": kind, **given}, body)
        except (TypeError, ValueError) as error:
            raise Reject(f"the follow-up {kind} cannot be sent: {error}") from error
        self._writer.write(data)

    @property
    def log(self) -> _Log:
        """A logger whose lines name the task."""
        if self._log is None:
            self._log = LoggerAdapter(_logger, {"garenne": self})
        return self._log

    def _run(self, type: str) -> Dict[str, Any]:
        return {"type": type, "id": self.id, "attempt": self.attempt}
