"""Runs one task at a time in the main thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Optional

from . import _logs
from ._context import Context, current
from ._frames import NEXT, Channel, Frame
from ._handler import Function, failed
from ._registry import PROTOCOL, Handlers


def run(function: Optional[Function] = None, *, concurrency: int = 1, call: bool = False) -> None:
    """Runs tasks until the worker ends this process.

    Without a function, every function that is decorated with `task` serves its kinds. A function that is not decorated
    runs whatever kind the worker gives. Coroutines, and functions if `concurrency` is over 1, run `concurrency` at a
    time. With `call`, the function takes the arguments of calls, as in `task`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The worker gets it too, and decides.
    if not 1 <= concurrency <= 1000:
        raise ValueError(f"concurrency is {concurrency}; expected 1 to 1000")
    handlers = Handlers(function, call)
    channel = _channel()
    _logs.configure()
    _logs.channel = channel
    try:
        if concurrency > 1 or any(handler.is_async for handler in handlers.all()):
            from ._concurrent import serve  # asyncio takes longer to load than all the rest

            serve(handlers, channel, concurrency)
        else:
            OneByOne(handlers, channel).serve()
    except BrokenPipeError:
        print("garenne: the worker is gone", file=sys.stderr)
    finally:
        _logs.channel = None


def _channel() -> Channel:
    version = os.environ.get("GARENNE_HANDLER_PROTOCOL")
    if version is None:
        sys.exit("garenne: this program is started by a worker; to run a handler without one, use garenne.testing")
    if version != str(PROTOCOL):
        sys.exit(f"garenne: the worker has version {version} of the protocol; this SDK needs {PROTOCOL}")
    limit = os.environ.get("GARENNE_HANDLER_MAX_BODY")
    return Channel(
        int(os.environ.get("GARENNE_HANDLER_IN", "3")),
        int(os.environ.get("GARENNE_HANDLER_OUT", "4")),
        int(limit) if limit else None,
    )


class OneByOne:
    """Runs one task at a time in the thread that called `run`.

    There is no thread that reads. While a handler runs, frames wait in the pipe until the handler asks whether it is
    cancelled, which is the only way in which it can learn of one. This saves two switches of threads for each task.
    """

    def __init__(self, handlers: Handlers, channel: Channel) -> None:
        self._handlers = handlers
        self._channel = channel
        # Held while a thread reads.
        self._reading = threading.Lock()
        self._ending = False  # No further task comes.
        self._ended = False  # No further frame comes.

    def serve(self) -> None:
        channel = self._channel
        channel.write(self._handlers.hello(1) + NEXT)
        while not (self._ending or self._ended):
            with self._reading:
                received = channel.take()
                while received is None:
                    if not channel.fill():
                        return
                    received = channel.take()
            type = received[0].get("type")
            if type == "task":
                self._run(received)
            elif type == "bye":
                return
            # A cancel is for a run that was answered already.

    def _run(self, received: Frame) -> None:
        head, body = received
        cx = Context(head, self._channel, self)
        current.set(cx)
        try:
            handler = self._handlers.get(cx.kind)
        except LookupError as error:
            answer = failed(cx, error)
        else:
            answer = handler.run(cx, body)
        cx._answered = True
        current.set(None)
        self._channel.write(answer if self._ending or self._ended else answer + NEXT)

    def wait(self, cx: Context, seconds: float) -> None:
        """Reads frames until the task is cancelled or the time is over."""
        until = time.monotonic() + seconds
        # The main thread holds the lock after the answer, while it waits for the next task.
        if not self._reading.acquire(timeout=seconds):
            return
        try:
            while cx._cancelled_by is None and not cx._answered:
                received = self._channel.take()
                if received is None:
                    left = until - time.monotonic()
                    # In short steps: a thread that outlives its task must not keep the lock.
                    if not self._ended and self._channel.wait(min(left, 0.1)):
                        self._ended = not self._channel.fill()
                    elif self._ended or left <= 0:
                        break
                    continue
                head, _ = received
                if head.get("type") == "bye":
                    self._ending = True
                elif head.get("type") == "cancel" and (head["id"], head["attempt"]) == (cx.id, cx.attempt):
                    cx._cancelled_by = head.get("reason", "stopped")
        finally:
            self._reading.release()
        left = until - time.monotonic()
        if self._ended and cx._cancelled_by is None and left > 0:
            time.sleep(left)  # No cancel can come any more.
