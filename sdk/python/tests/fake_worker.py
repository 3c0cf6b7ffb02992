"""A worker for tests: it starts a child, and speaks frames with it over pipes."""

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
TESTS = Path(__file__).resolve().parent
TIMEOUT = 30


def _pipe():
    """A pipe whose descriptors are none of those that the child gets."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Child:
    """A process that runs tasks, such as `Child(sys.executable, "resize.py")`."""

    def __init__(self, *command, **environment):
        to_child, self._to = _pipe()
        self._from, from_child = _pipe()
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS)]),
            "GARENNE_HANDLER_PROTOCOL": "1",
            "GARENNE_HANDLER_IN": "3",
            "GARENNE_HANDLER_OUT": "4",
            "GARENNE_HANDLER_MAX_BODY": str(8 << 20),
            **environment,
        }
        out, err = (fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 10) for file in (self._out, self._err))
        null = os.open(os.devnull, os.O_RDONLY)
        targets = ((null, 0), (out, 1), (err, 2), (to_child, 3), (from_child, 4))
        moves = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in targets]
        self.pid = os.posix_spawnp(command[0], command, environment, file_actions=moves)
        for descriptor in (null, out, err, to_child, from_child):
            os.close(descriptor)
        self._buffer = b""
        self._held = self._status = self.usage = None

    def stop(self):
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.close()
        self.stop_reading()
        self._out.close()
        self._err.close()

    def write(self, head, body=b""):
        head = json.dumps(head).encode()
        data = struct.pack(">II", len(head), len(body)) + head + body
        if self._held is None:
            self.send(data)
        else:
            self._held += data

    def send(self, data):
        data = memoryview(data)
        while data:
            data = data[os.write(self._to, data) :]

    @contextlib.contextmanager
    def held(self):
        """Collects what is written, to be sent later."""
        self._held = bytearray()
        yield self._held
        self._held = None

    def task(self, payload=None, *, id="a1", attempt=1, kind="echo", body=None, **members):
        head = {"type": "task", "id": id, "attempt": attempt, "kind": kind, "deadline_ms": 600_000, "headers": {}}
        head["content_type"] = "application/json"
        self.write({**head, **members}, json.dumps(payload).encode() if body is None else body)

    def _exactly(self, size):
        parts = [self._buffer]
        have = len(self._buffer)
        while have < size:
            if not select.select([self._from], [], [], TIMEOUT)[0]:
                raise AssertionError(f"the child wrote nothing for {TIMEOUT} s; stderr: {self.stderr()}")
            part = os.read(self._from, 1 << 20)
            if not part:
                self._buffer = b"".join(parts)
                return None
            parts.append(part)
            have += len(part)
        data = b"".join(parts)
        self._buffer = data[size:]
        return data[:size]

    def read(self):
        """The next frame: its head, and its body as JSON. None at the end."""
        sizes = self._exactly(8)
        if sizes is None:
            return None
        head, body = struct.unpack(">II", sizes)
        data = self._exactly(head + body)
        return json.loads(data[:head]), json.loads(data[head:]) if body else None

    def ask(self, *types):
        """Reads as many frames, and returns them. Fails if they have other types."""
        frames = [self.read() for _ in types]
        found = tuple(frame and frame[0]["type"] for frame in frames)
        if found != types:
            raise AssertionError(f"{frames}; expected {types}; stderr: {self.stderr()}")
        return frames

    def start(self):
        """Reads hello and the first next."""
        (hello, _), _ = self.ask("hello", "next")
        return hello

    def close(self):
        """Ends descriptor 3."""
        if self._to is not None:
            os.close(self._to)
            self._to = None

    def stop_reading(self):
        """Ends descriptor 4."""
        if self._from is not None:
            os.close(self._from)
            self._from = None

    def wait(self):
        """The exit code, or minus the signal."""
        _, status, self.usage = os.wait4(self.pid, 0)
        self._status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        return self._status

    def _text(self, file):
        return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")

    def stdout(self):
        return self._text(self._out)

    def stderr(self):
        return self._text(self._err)
