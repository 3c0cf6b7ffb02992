"""The functions that the tests' children serve, one task at a time."""

import logging
import os
import subprocess
import sys

import garenne


@garenne.task("echo")
def echo(payload):
    return payload


@garenne.task("close-stderr")
def close_stderr(payload):
    os.close(2)
    raise ValueError("the reason")


@garenne.task("describe")
def describe(cx, payload):
    return {
        "id": cx.id,
        "kind": cx.kind,
        "attempt": cx.attempt,
        "lane": cx.lane,
        "group": cx.group,
        "key": cx.key,
        "headers": dict(cx.headers),
        "traceparent": cx.traceparent,
        "tracestate": cx.tracestate,
        "enqueued_at": cx.enqueued_at and cx.enqueued_at.isoformat(),
        "remaining": cx.remaining,
        "deadline": cx.deadline and cx.deadline.timestamp(),
        "cancelled": cx.cancelled,
        "payload": repr(payload),
    }


@garenne.task("raise")
def fail(payload):
    name, *arguments = payload
    raise {
        "reject": lambda: garenne.Reject(*arguments),
        "invalid": lambda: garenne.Reject(*arguments, reason="invalid-payload"),
        "retry": lambda: garenne.Retry(*arguments),
        "retry-after": lambda: garenne.Retry("the server is down", after=1.5),
        "snooze": lambda: garenne.Snooze(30),
        "error": lambda: ValueError(*arguments),
        "exit": lambda: SystemExit(*arguments),
    }[name]()


@garenne.task("cause")
def cause(payload):
    try:
        {}["missing"]
    except KeyError as error:
        raise garenne.Retry(after=1) from error


@garenne.task("output")
def output(payload):
    loop = []
    loop.append(loop)
    return {
        "bytes": b"\0",
        "object": object(),
        "nan": [float("nan")],
        "infinity": float("-inf"),
        "surrogate": "\ud800",
        "loop": loop,
        "large": "x" * (9 << 20),
        "none": None,
    }[payload]


@garenne.task("noise")
def noise(payload):
    print("printed", flush=True)
    sys.stdout.buffer.write(b"\x00\xff\x00\x00{garbage")
    sys.stdout.flush()
    subprocess.run(["sh", "-c", "echo from a shell"], check=True)
    return "quiet"


@garenne.task("descriptors")
def descriptors(payload):
    script = "for fd in 3 4; do [ -e /dev/fd/$fd ] && echo $fd; done; true"
    listed = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True, close_fds=False)
    return listed.stdout.split()


@garenne.task("wait")
def wait(cx, payload):
    cx.progress(0.5)
    if payload == "check":
        while True:
            cx.check()
    if payload == "progress":
        while True:
            cx.progress(0.5)
    if payload == "swallow":
        while True:
            try:
                cx.check()
            except Exception:
                pass
    cancelled = cx.wait(20)
    return [cancelled, cx.cancelled, cx.cancel_reason]


@garenne.task("nap")
def nap(cx, payload):
    cx.progress(0.5)
    return cx.wait(payload)


@garenne.task("follow_up")
def follow_up(cx, payload):
    cx.follow_up("next.one", {"name": "größe"})
    cx.follow_up(
        "next.two", id="t2", delay=1.5, key="k", group="g", timeout=60, headers={"tenant": "acme", "n": 1, "b": True}
    )
    if payload == "bad":
        cx.follow_up("next.three", {1, 2})
    if payload == "large":
        cx.follow_up("next.three", "x" * (9 << 20))
    if payload == "headers":
        cx.follow_up("next.three", headers={"long": "x" * 70_000})


@garenne.task("progress")
def progress(cx, payload):
    for done in (-1, 0.25, 0.5, 0.75, 2):
        cx.progress(done)


@garenne.task("log")
def log(cx, payload):
    handler = garenne.LogHandler()
    logger = logging.getLogger("app")
    if payload == "frames":
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    logger.warning("two\nlines")
    logger.debug("details")
    cx.log.info("of the task")


@garenne.task("late")
def late(cx, payload):
    kept.append(cx)
    if len(kept) == 2:
        kept[0].progress(0.5)
        kept[0].follow_up("too.late")


kept = []


@garenne.task("fork")
def fork(cx, payload):
    import os

    child = os.fork()
    if child == 0:
        if cx.wait(0.01):
            os._exit(1)
        try:
            cx.progress(0.5)
        except OSError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
