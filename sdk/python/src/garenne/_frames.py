"""Frames between the worker and this process, as docs/reference/handlers.md specifies them."""

from __future__ import annotations

import json
import os
import select
import struct
import threading
import time
from typing import Any, Dict, Optional, Tuple

from ._errors import Reject

MAX_HEAD = 65_536
CHUNK = 65_536  # what a pipe holds by default

_sizes = struct.Struct(">II")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).decode

Frame = Tuple[Dict[str, Any], bytes]


class ProtocolError(Exception):
    """The peer wrote something that is no frame."""


def decode(data: bytes) -> Any:
    """Reads strict JSON: no NaN, no Infinity. Raises a ValueError."""
    return _decode(data.decode("utf-8"))


def encode(value: Any, what: str) -> bytes:
    """Writes strict JSON. Raises `Reject` with a text that names the type or the value at fault."""
    try:
        return _encode(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise Reject(f"{what} is not JSON: {error}") from error


def frame(head: Dict[str, Any], body: bytes = b"") -> bytes:
    # An error may have parts of a file name that are not Unicode.
    text = _encode(head).encode("utf-8", "backslashreplace")
    if len(text) > MAX_HEAD:
        raise ValueError(f"the head of {head['type']} has {len(text)} bytes; the limit is {MAX_HEAD}")
    return _sizes.pack(len(text), len(body)) + text + body


NEXT = frame({"type": "next"})


def done_frame(id: str, attempt: int, body: bytes) -> bytes:
    """`frame` for the most frequent answer, at a third of the cost."""
    text = f'{{"type":"done","id":{_encode(id)},"attempt":{attempt}}}'.encode()
    return _sizes.pack(len(text), len(body)) + text + body


class FrameReader:
    """Splits bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> Optional[Frame]:
        """The next frame, or None if it is not complete."""
        buffer = self._buffer
        if len(buffer) < 8:
            return None
        head_size, body_size = _sizes.unpack_from(buffer)
        if head_size > MAX_HEAD:
            raise ProtocolError(f"a head of {head_size} bytes; the limit is {MAX_HEAD}")
        body_start = 8 + head_size
        end = body_start + body_size
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            text, body = bytes(view[8:body_start]), bytes(view[body_start:end])
        del buffer[:end]
        try:
            head = decode(text)
        except ValueError as error:
            raise ProtocolError(f"a head that is not JSON: {error}") from error
        if not isinstance(head, dict):
            raise ProtocolError("a head that is no object")
        return head, body


class Channel:
    """The descriptors 3 and 4. Any thread may write; one thread at a time may read."""

    def __init__(self, reads: int, writes: int, max_body: Optional[int] = None) -> None:
        self.reads = reads
        self.max_body = max_body
        self._writes = writes
        self._frames = FrameReader()
        self._write_lock = threading.Lock()
        self._readable = select.poll()
        self._readable.register(reads, select.POLLIN)
        # Programs that a handler starts must not keep the pipes open.
        os.set_inheritable(reads, False)
        os.set_inheritable(writes, False)
        os.register_at_fork(after_in_child=self._close)

    def _close(self) -> None:
        for descriptor in (self.reads, self._writes):
            try:
                os.close(descriptor)
            except OSError:
                pass
        # The numbers may be those of other files later.
        self.reads = self._writes = -1

    def check_body(self, body: bytes, what: str) -> bytes:
        if self.max_body is not None and len(body) > self.max_body:
            raise Reject(f"{what} has {len(body)} bytes; the limit is {self.max_body}")
        return body

    def write(self, data: bytes) -> None:
        """Writes whole frames. Returns when the pipe has them."""
        with self._write_lock:
            written = os.write(self._writes, data)
            if written < len(data):
                rest = memoryview(data)[written:]
                while rest:
                    rest = rest[os.write(self._writes, rest) :]

    def take(self) -> Optional[Frame]:
        return self._frames.take()

    def fill(self) -> bool:
        """Reads once, and waits for bytes if there are none. False at the end of the pipe."""
        data = os.read(self.reads, CHUNK)
        self._frames.feed(data)
        return bool(data)

    def wait(self, seconds: float) -> bool:
        """Whether there is something to read, within this time."""
        if self.reads < 0:  # in a fork
            time.sleep(max(0.0, seconds))
            return False
        return bool(self._readable.poll(max(0.0, seconds) * 1000))
