"""The functions of a program, by kind."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, TypeVar

from ._frames import frame
from ._handler import Function, Handler
from ._version import __version__

PROTOCOL = 1

#: The functions that `task` registered, by kind.
registered: Dict[str, Handler] = {}

F = TypeVar("F", bound=Function)


def task(kind: str, *, call: bool = False) -> Callable[[F], F]:
    """Registers the decorated function for the tasks of a kind. The function itself stays as it is.

    With `call`, the payload is a call as Celery's senders make it, `{"args": [...], "kwargs": {...}}`, and the function
    takes these arguments.
    """
    if not isinstance(kind, str) or not kind:
        raise TypeError('a kind is a text: write @garenne.task("image.resize")')

    def register(function: F) -> F:
        if kind in registered:
            raise ValueError(f"the kind {kind} has two functions")
        registered[kind] = Handler(function, call)
        return function

    return register


class Handlers:
    """Finds the handler of a kind."""

    def __init__(self, function: Optional[Function], call: bool = False) -> None:
        self.by_kind = registered
        self.any: Optional[Handler] = None
        if function is not None:
            self.by_kind = {kind: one for kind, one in registered.items() if one.function is function}
            if not self.by_kind:
                self.any = Handler(function, call)
        elif not registered:
            raise RuntimeError("the program has no function that is decorated with @garenne.task")

    def all(self) -> List[Handler]:
        return list(self.by_kind.values()) if self.any is None else [self.any]

    def get(self, kind: str) -> Handler:
        found = self.by_kind.get(kind, self.any)
        if found is None:
            raise LookupError(f"the program has no function for the kind {kind}")
        return found

    def hello(self, concurrency: int) -> bytes:
        head = {"type": "hello", "protocol": PROTOCOL, "sdk": f"garenne-python/{__version__}"}
        kinds = {} if self.any else {"kinds": sorted(self.by_kind)}
        return frame({**head, **kinds, "concurrency": concurrency})
