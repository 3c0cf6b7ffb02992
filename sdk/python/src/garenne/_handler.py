"""A handler, and what its result or exception is answered by."""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _celery
from ._context import Context
from ._errors import Cancelled, Reject, Retry, Snooze, describe, shorten
from ._frames import decode, done_frame, encode, frame

Function = Callable[..., Any]


class Handler:
    """A function that takes `(payload)` or `(cx, payload)`, or one that calls of Celery's senders are made of.

    A Celery task is of the second sort, whatever `call` says.
    """

    __slots__ = ("function", "is_async", "_takes_call", "_takes_context", "_is_celery_task")

    def __init__(self, function: Function, call: bool = False) -> None:
        self.function = function
        self.is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._takes_call = call or hasattr(function, "apply_async")
        self._takes_context = False
        self._is_celery_task = hasattr(function, "push_request")
        if self._takes_call:
            return
        parameters = inspect.signature(function).parameters.values()
        positional = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        required = sum(parameter.default is parameter.empty for parameter in positional)
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
        if required > 2 or not positional or keywords:
            name = getattr(function, "__qualname__", repr(function))
            raise TypeError(f"{name} takes {inspect.signature(function)}; expected (payload) or (cx, payload)")
        self._takes_context = required == 2

    def call(self, cx: Context, body: bytes) -> Any:
        """Returns the output, or the coroutine that does."""
        payload = _payload(cx, body)
        if self._takes_call:
            args, kwargs = _call(payload)
            if self._is_celery_task:
                return _celery.run(self.function, cx, args, kwargs)
            return self.function(*args, **kwargs)
        return self.function(cx, payload) if self._takes_context else self.function(payload)

    def run(self, cx: Context, body: bytes) -> bytes:
        """Runs a synchronous handler. Returns the answer's frame."""
        try:
            output = self.call(cx, body)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            return failed(cx, error)
        return done(cx, output)


def _call(payload: Any) -> Tuple[List[Any], Dict[str, Any]]:
    """The arguments of a call, as Celery's senders give them."""
    if isinstance(payload, dict) and payload.keys() <= {"args", "kwargs"}:
        args, kwargs = payload.get("args", []), payload.get("kwargs", {})
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    raise Reject('the payload is no call: expected {"args": [...], "kwargs": {...}}', reason="invalid-payload")


def _payload(cx: Context, body: bytes) -> Any:
    media_type = cx._head.get("content_type", "application/json")
    if media_type != "application/json":
        media_type = media_type.partition(";")[0].strip().lower()
        if media_type != "application/json" and not media_type.endswith("+json"):
            return body
    try:
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise Reject(f"the payload is not JSON: {error}", reason="invalid-payload") from error


def done(cx: Context, output: Any) -> bytes:
    try:
        body = b"" if output is None else cx._writer.check_body(encode(output, "the output"), "the output")
    except Reject as error:
        return failed(cx, error)
    return done_frame(cx.id, cx.attempt, body)


def failed(cx: Context, error: BaseException) -> bytes:
    """The answer for an exception. The traceback of an unexpected one goes to standard error."""
    answer: Dict[str, Any] = {"type": "retry", "id": cx.id, "attempt": cx.attempt}
    if isinstance(error, Reject):
        answer.update(type="reject", error=shorten(str(error)), reason=error.reason)
    elif isinstance(error, Snooze):
        answer.update(type="snooze", after_ms=error.after_ms)
    elif isinstance(error, Retry):
        answer.update(error=shorten(str(error)))
        if error.after_ms is not None:
            answer.update(after_ms=error.after_ms)
    elif isinstance(error, Cancelled):
        answer.update(error=str(error))
    else:
        # The handler may have closed it.
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(type(error), error, _without_sdk(error.__traceback__))
        answer.update(error=shorten(describe(error)))
    return frame(answer)


def _without_sdk(frames: Optional[TracebackType]) -> Optional[TracebackType]:
    """The traceback from the handler on: each line of it is one of the worker's log."""
    first = frames
    while first is not None and os.path.dirname(first.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        first = first.tb_next
    return first or frames
