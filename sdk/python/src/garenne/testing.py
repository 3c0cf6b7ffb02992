"""Runs a handler without a worker.

In a test::

    result = garenne.testing.run(resize, {"width": 200})
    assert result.outcome == "done" and result.output == {"bytes": 5120}
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Union

from ._context import Context, Header, current
from ._errors import Cancelled
from ._frames import FrameReader
from ._handler import Function, Handler, done, failed
from ._registry import registered


@dataclass
class FollowUp:
    """A task that the handler asked for. Times are in milliseconds, as in the frame."""

    kind: str
    payload: Any
    options: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """What the worker would have got."""

    #: "done", "retry", "reject" or "snooze"
    outcome: str
    #: of "done", as JSON gives it
    output: Any = None
    #: of "retry" and "reject"
    error: Optional[str] = None
    #: of "reject": "rejected" or "invalid-payload"
    reason: Optional[str] = None
    #: seconds, of "retry" and "snooze"
    after: Optional[float] = None
    follow_ups: List[FollowUp] = field(default_factory=list)
    progress: List[float] = field(default_factory=list)


class _Recorder:
    """Takes the frames, and answers whether the task is cancelled."""

    def __init__(self, cancel: Optional[str]) -> None:
        self.frames = FrameReader()
        self.cancel = cancel

    def write(self, data: bytes) -> None:
        self.frames.feed(data)

    def check_body(self, body: bytes, what: str) -> bytes:
        return body

    def wait(self, cx: Context, seconds: float) -> None:
        cx._cancelled_by = self.cancel


def run(
    function: Union[Function, str],
    payload: Any = None,
    *,
    kind: Optional[str] = None,
    id: str = "test",
    attempt: int = 1,
    headers: Optional[Mapping[str, Header]] = None,
    lane: Optional[str] = None,
    group: Optional[str] = None,
    key: Optional[str] = None,
    deadline: float = 600,
    cancel: Optional[str] = None,
) -> Result:
    """Runs a function, or the decorated function of a kind, and returns what it would have answered.

    The payload and the output pass through JSON. `bytes` are given to the function as they are. With `cancel`
    ("deadline", "stopped" or "shutdown") a function is cancelled from its start, and a coroutine when it first waits.
    `Context.wait` does not sleep.
    """
    if isinstance(function, str):
        handler, kind = registered[function], function
    else:
        names = [name for name, one in registered.items() if one.function is function]
        handler = registered[names[0]] if names else Handler(function)
        kind = kind or (names[0] if names else "test")
    binary = isinstance(payload, bytes)
    head: Dict[str, Any] = {
        "type": "task",
        "id": id,
        "attempt": attempt,
        "kind": kind,
        "deadline_ms": int(deadline * 1000),
        "content_type": "application/octet-stream" if binary else "application/json",
        "headers": dict(headers or {}),
    }
    head.update({name: value for name, value in (("lane", lane), ("group", group), ("key", key)) if value})
    recorder = _Recorder(None if handler.is_async else cancel)
    cx = Context(head, recorder, recorder)
    body = payload if binary else json.dumps(payload, allow_nan=False).encode()
    token = current.set(cx)
    try:
        if handler.is_async:
            answer = asyncio.run(_coroutine(handler, cx, body, cancel))
        else:
            answer = handler.run(cx, body)
        recorder.write(answer)
    finally:
        current.reset(token)
    return _result(recorder.frames)


async def _coroutine(handler: Handler, cx: Context, body: bytes, cancel: Optional[str]) -> bytes:
    try:
        run = asyncio.ensure_future(handler.call(cx, body))
        if cancel is not None:
            asyncio.get_running_loop().call_soon(_cancel, cx, run, cancel)
        output = await run
    except asyncio.CancelledError as error:
        return failed(cx, Cancelled(cx._cancelled_by) if cx._cancelled_by else error)
    except (Exception, Cancelled) as error:
        return failed(cx, error)
    return done(cx, output)


def _cancel(cx: Context, run: "asyncio.Future[Any]", reason: str) -> None:
    cx._cancelled_by = reason
    run.cancel()


def _result(frames: FrameReader) -> Result:
    follow_ups: List[FollowUp] = []
    progress: List[float] = []
    while (received := frames.take()) is not None:
        head, body = received
        if head["type"] == "progress":
            progress.append(head["done"])
        elif head["type"] == "follow_up":
            options = {name: value for name, value in head.items() if name not in ("type", "id", "attempt", "kind")}
            follow_ups.append(FollowUp(head["kind"], json.loads(body), options))
        else:
            break
    else:
        raise AssertionError("the handler gave no answer")
    after = head.get("after_ms")
    return Result(
        outcome=head["type"],
        output=json.loads(body) if body else None,
        error=head.get("error"),
        reason=head.get("reason"),
        after=None if after is None else after / 1000,
        follow_ups=follow_ups,
        progress=progress,
    )
