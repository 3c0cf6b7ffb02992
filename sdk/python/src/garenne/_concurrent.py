"""Runs several tasks at a time: coroutines in an event loop, functions in threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Dict, Tuple

from ._context import Context, current
from ._errors import Cancelled
from ._frames import NEXT, Channel, Frame
from ._handler import done, failed

if TYPE_CHECKING:
    from ._registry import Handlers


def serve(handlers: "Handlers", channel: Channel, concurrency: int) -> None:
    asyncio.run(Concurrent(handlers, channel, concurrency).serve())


class Concurrent:
    """Runs up to `concurrency` tasks: coroutines in the event loop, functions in threads."""

    def __init__(self, handlers: "Handlers", channel: Channel, concurrency: int) -> None:
        self._handlers = handlers
        self._channel = channel
        self._concurrency = concurrency
        self._threads = ThreadPoolExecutor(concurrency, "garenne")
        self._runs: Dict[Tuple[str, int], Tuple[Context, "asyncio.Future[Any]"]] = {}
        self._cancelled = threading.Condition()
        self._ending = False

    async def serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end: "asyncio.Future[None]" = self._loop.create_future()
        self._loop.add_reader(self._channel.reads, self._readable)
        self._channel.write(self._handlers.hello(self._concurrency) + NEXT * self._concurrency)
        await self._end
        self._threads.shutdown()

    def _readable(self) -> None:
        try:
            more = self._channel.fill()
            while (received := self._channel.take()) is not None:
                type = received[0].get("type")
                if type == "task":
                    self._start(received)
                elif type == "cancel":
                    self._cancel(received[0])
                elif type == "bye":
                    self._ending = True
            if not more:
                self._loop.remove_reader(self._channel.reads)
                self._ending = True
            self._end_if_idle()
        except BaseException as error:
            self._fail(error)

    def _start(self, received: Frame) -> None:
        head, body = received
        cx = Context(head, self._channel, self)
        context = contextvars.copy_context()
        context.run(current.set, cx)
        try:
            handler = self._handlers.get(cx.kind)
            if handler.is_async:
                coroutine = handler.call(cx, body)
                run: "asyncio.Future[Any]" = context.run(self._loop.create_task, coroutine)
                answered = self._coroutine_ended
            else:
                run = self._loop.run_in_executor(self._threads, context.run, handler.run, cx, body)
                answered = self._function_ended
        except Exception as error:
            self._answer(cx, failed(cx, error))
            return
        self._runs[cx.id, cx.attempt] = cx, run
        run.add_done_callback(lambda ended: answered(cx, ended))

    def _cancel(self, head: Dict[str, Any]) -> None:
        cx, run = self._runs.get((head["id"], head["attempt"]), (None, None))
        if cx is None or run is None:
            return  # It was answered already.
        with self._cancelled:
            cx._cancelled_by = head.get("reason", "stopped")
            self._cancelled.notify_all()
        if isinstance(run, asyncio.Task):
            run.cancel()

    def wait(self, cx: Context, seconds: float) -> None:
        """Waits in the thread of a function."""
        if seconds > 0:
            with self._cancelled:
                self._cancelled.wait_for(lambda: cx._cancelled_by is not None, seconds)

    def _coroutine_ended(self, cx: Context, run: "asyncio.Future[Any]") -> None:
        try:
            answer = done(cx, run.result())
        except (SystemExit, KeyboardInterrupt):
            return  # The loop raises it.
        except asyncio.CancelledError as error:
            answer = failed(cx, Cancelled(cx._cancelled_by) if cx._cancelled_by else error)
        except BaseException as error:
            answer = failed(cx, error)
        self._answer(cx, answer)

    def _function_ended(self, cx: Context, run: "asyncio.Future[Any]") -> None:
        error = run.exception()
        if error is None:
            self._answer(cx, run.result())
        else:
            self._fail(error)

    def _answer(self, cx: Context, answer: bytes) -> None:
        cx._answered = True
        self._runs.pop((cx.id, cx.attempt), None)
        try:
            self._channel.write(answer if self._ending else answer + NEXT)
        except OSError as error:
            self._fail(error)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._ending and not self._runs and not self._end.done():
            self._end.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Ends the program by this exception."""
        if not self._end.done():
            self._end.set_exception(error)
