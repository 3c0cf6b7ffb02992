"""Runs a task of a Celery application as Celery's own workers do. Celery is never imported: the application has done so."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional

from ._context import Context
from ._errors import Reject, Retry


def run(task: Any, cx: Context, args: List[Any], kwargs: Dict[str, Any]) -> Any:
    """Returns the output. Celery's `Retry` becomes this package's, with its countdown or eta."""
    if hasattr(task, "_get_current_object"):  # what the decorators of Celery return
        task = task._get_current_object()
    if "signature_from_request" not in vars(task):
        task.signature_from_request = _retried_by_the_worker(task)
    running = getattr(sys.modules.get("celery._state"), "_task_stack", None)
    if running is not None:  # for celery.current_task
        running.push(task)
    task.push_request(
        id=cx.id,
        correlation_id=cx.id,
        task=cx.kind,
        args=args,
        kwargs=kwargs,
        retries=cx.attempt - 1,
        called_directly=False,
        garenne=True,
    )
    try:
        return _function(task)(*args, **kwargs)
    except Exception as error:
        if not _is_of_celery(type(error), "celery.exceptions", "Retry"):
            raise
        raise Retry(error, after=_seconds_until(error.when)) from error  # type: ignore[attr-defined]
    finally:
        task.pop_request()
        if running is not None:
            running.pop()


def _function(task: Any) -> Any:
    """What runs the task: Celery's own `__call__` would give it an empty request."""
    caller = next(base for base in type(task).__mro__ if "__call__" in vars(base))
    if caller.__module__ != "celery.app.task":
        # One of the application, which may call Celery's.
        protect = getattr(sys.modules.get("celery.app.trace"), "_install_stack_protection", None)
        if protect is not None:
            protect()
        return task
    return task.run


def _retried_by_the_worker(task: Any) -> Any:
    """For `task.signature_from_request`, by which `task.retry` publishes a message: the worker does that."""
    of_celery = task.signature_from_request

    def signature_from_request(request: Any = None, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        request = task.request if request is None else request
        if not getattr(request, "garenne", False):
            return of_celery(request, args, kwargs, **options)
        is_other = args is not None and list(args) != list(request.args)
        if is_other or (kwargs is not None and dict(kwargs) != request.kwargs):
            raise Reject("retry() with other arguments: a task is retried with those that it has")
        return _Published(request)

    return signature_from_request


class _Published:
    """Celery names the arguments when no retry is left."""

    def __init__(self, request: Any) -> None:
        self.args, self.kwargs = request.args, request.kwargs

    def apply_async(self, *_: Any, **__: Any) -> None:
        pass


def _is_of_celery(kind: type, module: str, name: str) -> bool:
    return any((base.__module__, base.__qualname__) == (module, name) for base in kind.__mro__)


def _seconds_until(when: Any) -> Optional[float]:
    if isinstance(when, datetime):
        when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
        when = (when - datetime.now(timezone.utc)).total_seconds()
    return None if when is None else max(0.0, float(when))
