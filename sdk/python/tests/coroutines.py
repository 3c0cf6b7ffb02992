"""The functions that the tests' children serve, several tasks at a time."""

import asyncio

import garenne

met = []


@garenne.task("async.echo")
async def echo(payload):
    return payload


@garenne.task("async.wait")
async def wait(cx, payload):
    cx.progress(0.5)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        if payload == "finish":
            return [cx.cancelled, cx.cancel_reason]
        raise


@garenne.task("async.meet")
async def meet(cx, payload):
    """Ends when two of them run."""
    if not met:
        met.append(asyncio.Event())
        await met[0].wait()
    met[0].set()
    return payload


@garenne.task("async.raise")
async def fail(payload):
    await asyncio.sleep(0)
    raise {
        "reject": garenne.Reject("no"),
        "snooze": garenne.Snooze(0.25),
        "error": OSError("lost"),
        "cancelled": asyncio.CancelledError(),
        "exit": SystemExit(9),
    }[payload]


@garenne.task("async.output")
async def output(payload):
    return {1, 2}


@garenne.task("async.thread")
def thread(cx, payload):
    cx.progress(0.5)
    return cx.wait(20)


@garenne.task("async.follow_up")
async def follow_up(cx, payload):
    cx.follow_up("next.one", payload)
    cx.log.warning("of the task")
