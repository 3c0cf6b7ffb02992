"""Sends calls as an application does, and prints what came of each as one JSON line: `[name, result, seconds]`."""

import datetime
import json
import sys
import time

from celery.exceptions import TaskRevokedError
from proj import add, app, fail, flaky, legacy, wait

TIMEOUT = 60


def report(name, result, seconds=0.0):
    print(json.dumps([name, result, seconds]), flush=True)


def outcome(name, send):
    began = time.time()
    try:
        result = send().get(timeout=TIMEOUT)
    except TaskRevokedError as error:
        result = f"TaskRevokedError: {error}"
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    report(name, result, time.time() - began)


def calls(zone):
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
    naive = soon.astimezone(datetime.timezone(datetime.timedelta(hours=int(zone)))).replace(tzinfo=None)
    outcome("delay", lambda: add.delay(2, 3))
    outcome("kwargs", lambda: add.apply_async((), {"x": 4, "y": 5}))
    outcome("send-task", lambda: app.send_task("proj.tasks.add", (6,), {"y": 7}))
    outcome("countdown", lambda: add.apply_async((1, 1), countdown=2))
    outcome("eta", lambda: add.apply_async((1, 2), eta=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)))
    wait.apply_async((1,), eta=naive, task_id="naive")
    report("naive", soon.timestamp())
    outcome("not-expired", lambda: add.apply_async((1, 3), expires=600))
    outcome("expired", lambda: add.apply_async((1, 4), countdown=2, expires=1))
    outcome("limit", lambda: wait.apply_async((60_000,), time_limit=30, soft_time_limit=0.5))
    outcome("hard-limit", lambda: wait.apply_async((60_000,), time_limit=1))
    outcome("flaky", lambda: flaky.apply_async((3,), headers={"tenant": "acme"}))
    outcome("fail", lambda: fail.apply_async(("no such account",), task_id="failed"))


def refused():
    for name, options in [
        ("link", {"link": add.s(1)}),
        ("link-error", {"link_error": add.s(1)}),
        ("chain", {"chain": [add.s(1)]}),
        ("chord", {"chord": add.s(1)}),
        ("pickle", {"serializer": "pickle"}),
        ("compression", {"compression": "gzip"}),
    ]:
        outcome(name, lambda: add.apply_async((1, 1), task_id=f"refused-{name}", **options))


def mixed(count):
    sent = []
    for n in range(int(count)):
        sent.append((add.delay(n, 1), n + 1))
        sent.append((legacy.apply_async((str(n),), headers={"tenant": "acme"}), None))
    for result, expected in sent:
        value = result.get(timeout=TIMEOUT)
        if expected is None:
            assert value == {"celery": True, "text": value["text"], "id": result.id, "tenant": "acme"}, value
        else:
            assert value == expected, value
    report("mixed", len(sent))


def added(x, y):
    outcome("added", lambda: add.delay(int(x), y=int(y)))


def effects(count):
    for n in range(int(count)):
        wait.apply_async((50,), task_id=f"effect-{n}")
    report("effects", int(count))


def countdown(seconds):
    outcome("countdown", lambda: add.apply_async((1, 1), countdown=float(seconds)))
    outcome("moved", lambda: app.send_task("proj.tasks.flaky", (1,), countdown=float(seconds)))


globals()[sys.argv[1]](*sys.argv[2:])
