"""A handler that speaks the protocol by hand and does what a task asks for, also what no handler should do."""

import json
import os
import signal
import struct
import subprocess
import sys
import time

INPUT = os.fdopen(int(os.environ["GARENNE_HANDLER_IN"]), "rb", 0)
OUTPUT = int(os.environ["GARENNE_HANDLER_OUT"])


def write(data):
    while data:
        data = data[os.write(OUTPUT, data) :]


def send(head, body=None):
    head = json.dumps(head).encode()
    body = b"" if body is None else json.dumps(body).encode()
    write(struct.pack(">II", len(head), len(body)) + head + body)


def read(size):
    data = b""
    while len(data) < size:
        part = INPUT.read(size - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data


def receive():
    head, body = struct.unpack(">II", read(8))
    head, body = json.loads(read(head)), read(body)
    return head, json.loads(body) if head["type"] == "task" else None


def grandchild(*, own_session):
    """A process that ends by SIGKILL only and keeps every descriptor."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code]
    child = subprocess.Popen(command, close_fds=False, pass_fds=(3, 4), start_new_session=own_session, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child.pid


def run(task, payload, name):
    """Does what the payload says. Returns the output, or None if it has answered itself."""
    what = payload.get("do", "echo") if isinstance(payload, dict) else "echo"
    if what == "echo":
        echo = payload if len(json.dumps(payload)) < 100_000 else "large"
        return {"pid": os.getpid(), "payload": echo, "task": task}
    if what == "print":
        print("\x00\x00\x00\x05{}", flush=True)
        subprocess.run(["sh", "-c", "echo from a shell; echo to stderr >&2"])
    elif what == "long-line":
        os.write(2, b"\xff" + b"x" * 10_000_000)
        os.write(2, b"\n")
    elif what == "close-stderr":
        os.close(1)
        os.close(2)
    elif what == "large":
        return "y" * payload["bytes"]
    elif what == "exit":
        time.sleep(payload.get("after", 0))
        print("the last words", file=sys.stderr, flush=True)
        os._exit(payload["code"])
    elif what == "signal":
        os.kill(os.getpid(), payload["signal"])
        time.sleep(60)
    elif what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        send({"type": "progress", **name, "done": 0.5})
        time.sleep(600)
    elif what == "sleep":
        time.sleep(payload["seconds"])
    elif what == "chain":
        # Each process lives for a moment and leaves the next one, so that a look at all processes may miss it.
        code = "import os, time\nwhile True:\n    if os.fork(): os._exit(0)\n    time.sleep(0.002)"
        subprocess.Popen([sys.executable, "-c", code, payload["mark"]], start_new_session=True)
        return os.getpid()
    elif what == "leave":
        # The new process has no parent in this tree when the handler's own process ends.
        if os.fork() == 0:
            os.setsid()
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", payload["mark"]])
            os._exit(0)
        os._exit(7)
    elif what == "fork":
        return [grandchild(own_session=False), grandchild(own_session=True)]
    elif what == "allocate":
        data = bytearray(payload["mib"] << 20)
        data[:: 4096] = b"x" * len(data[:: 4096])
        time.sleep(60)
    elif what == "exit-after-answer":
        grandchild(own_session=True)
        send({"type": "done", **name}, os.getpid())
        os._exit(7)
    elif what == "kill-worker":
        # The parent is the guardian of this process.
        with open(f"/proc/{os.getppid()}/stat") as stat:
            worker = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(worker, signal.SIGKILL)
        time.sleep(60)
    elif what == "twice":
        send({"type": "done", **name}, 1)
        send({"type": "done", **name}, 2)
        send({"type": "retry", "id": name["id"], "attempt": name["attempt"] + 1, "error": "no such attempt"})
        send({"type": "next"})
        return None
    elif what == "violate":
        write(b"Loading model...\n")
        time.sleep(60)
    elif what == "descriptors":
        return {"open": sorted(os.listdir("/proc/self/fd")), "environment": sorted(os.environ)}
    elif what == "follow":
        for index in range(payload["count"]):
            send({"type": "follow_up", **name, "kind": "odd.task"}, {"number": index})
        if payload.get("fail"):
            send({"type": "retry", **name, "error": "failed as asked"})
            send({"type": "next"})
            return None
    elif what in ("retry", "reject", "snooze"):
        answer = {key: value for key, value in payload.items() if key not in ("do", "attempts")}
        if task["attempt"] <= payload.get("attempts", 1) or what == "reject":
            send({"type": what, **name, **answer})
            send({"type": "next"})
            return None
    return "done"


def main():
    if flag := os.environ.get("ODD_UNTIL_FILE"):
        if not os.path.exists(flag):
            mode = os.environ["ODD_MODE"]
            if mode == "exit":
                print("cannot load the model", file=sys.stderr)
                sys.exit(3)
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "hungry":
                hoard = b"x" * 300_000_000
            if mode == "leave":
                send({"type": "hello", "protocol": 1, "sdk": "odd/1"})
                print("no license: \x1b[31m" + "x" * 1000, file=sys.stderr)
                sys.exit(4)
            if mode in ("bye", "close", "idle"):
                send({"type": "hello", "protocol": 1, "sdk": "odd/1"})
            if mode == "bye":
                send({"type": "bye"})
                sys.exit(0)
            if mode == "close":
                os.close(OUTPUT)
            time.sleep(600)
    send({"type": "hello", "protocol": 1, "sdk": "odd/1"})
    while True:
        send({"type": "next"})
        while True:
            task, payload = receive()
            if task["type"] == "bye":
                sys.exit(0)
            if task["type"] == "task":
                break
        name = {"id": task["id"], "attempt": task["attempt"]}
        output = run(task, payload, name)
        while output is None:
            # It has answered and asked already.
            task, payload = receive()
            if task["type"] == "bye":
                sys.exit(0)
            if task["type"] == "task":
                name = {"id": task["id"], "attempt": task["attempt"]}
                output = run(task, payload, name)
        send({"type": "done", **name}, output)


main()
