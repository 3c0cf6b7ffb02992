"""Builds the AMQP message of a task, for pika or any other client."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from ._context import Header
from ._errors import Seconds, milliseconds
from ._frames import encode

EXCHANGE = "garenne.tasks"
LONGEST = 30 * 24 * 3600 * 1000


@dataclass(frozen=True)
class Message:
    """A task to publish. `properties` are the keyword arguments of `pika.BasicProperties`."""

    routing_key: str
    body: bytes
    properties: Dict[str, Any]
    exchange: str = EXCHANGE

    @property
    def id(self) -> str:
        return str(self.properties["message_id"])


def _text(value: str, name: str, longest: int) -> str:
    if not 1 <= len(value.encode()) <= longest or any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError(f"{name} is {value!r}; expected 1 to {longest} bytes without control characters")
    return value


def _duration(value: Seconds, name: str) -> int:
    duration = milliseconds(value, name)
    if duration > LONGEST:
        raise ValueError(f"{name} is {value!r}; expected at most 30 days")
    return duration


def message(
    kind: str,
    payload: Any = None,
    *,
    id: Optional[str] = None,
    key: Optional[str] = None,
    group: Optional[str] = None,
    delay: Optional[Seconds] = None,
    timeout: Optional[Seconds] = None,
    expires: Optional[Seconds] = None,
    reply_to: Optional[str] = None,
    correlation_id: Optional[str] = None,
    headers: Optional[Mapping[str, Header]] = None,
    exchange: str = EXCHANGE,
) -> Message:
    """Builds the message of a task. Times are in seconds.

    Give the same `id` when you publish a task again; without one, it is a new task.
    """
    now = time.time()
    table: Dict[str, Any] = dict(headers or {})
    if key is not None:
        table["garenne-key"] = _text(key, "key", 255)
    if group is not None:
        table["garenne-group"] = _text(group, "group", 255)
        table["garenne-published-at"] = int(now * 1000)
    if delay is not None:
        table["garenne-delay-ms"] = _duration(delay, "delay")
    if timeout is not None:
        table["garenne-timeout-ms"] = _duration(timeout, "timeout")
    properties: Dict[str, Any] = {
        "message_id": _text(str(uuid.uuid4()) if id is None else id, "id", 128),
        "content_type": "application/json",
        "delivery_mode": 2,  # persistent
        "timestamp": int(now),
        "headers": table,
    }
    if expires is not None:
        properties["expiration"] = str(milliseconds(expires, "expires"))
    if reply_to is not None:
        properties["reply_to"] = reply_to
    if correlation_id is not None:
        properties["correlation_id"] = correlation_id
    return Message(_text(kind, "kind", 255), encode(payload, "the payload"), properties, exchange)
