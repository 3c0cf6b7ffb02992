"""A Celery application whose tasks move to Garenne one at a time. Environment variables configure it."""

import os

from celery import Celery
from kombu import Exchange, Queue

BROKER = os.environ["PROJ_BROKER"]
# Names of tasks that go to Garenne's exchange, separated by commas.
MOVED = [name for name in os.environ.get("PROJ_MOVED", "").split(",") if name]

app = Celery("proj", broker=BROKER, backend=os.environ.get("PROJ_BACKEND", "rpc://"))
app.conf.task_default_queue = "proj"
app.conf.broker_connection_retry_on_startup = True
if os.environ.get("PROJ_QUEUES") == "quorum":
    app.conf.task_default_queue_type = "quorum"
    app.conf.task_default_exchange_type = "topic"
    app.conf.task_default_exchange = "proj"
    exchange = Exchange("proj", type="topic")
    arguments = {"x-queue-type": "quorum"}
    app.conf.task_queues = [
        Queue(name, exchange, routing_key=name, queue_arguments=arguments) for name in ("proj", "proj.python")
    ]
    app.conf.worker_detect_quorum_queues = True


def route(name, args, kwargs, options, task=None, **_):
    if name in MOVED:
        return {"exchange": "garenne.tasks", "exchange_type": "topic", "routing_key": name}
    return None


app.conf.task_routes = (route,)


@app.task(name="proj.tasks.add")
def add(x, y):
    return x + y


@app.task(name="proj.tasks.wait")
def wait(ms):
    raise AssertionError("moved")


@app.task(name="proj.tasks.flaky")
def flaky(succeed_at):
    raise AssertionError("moved")


@app.task(name="proj.tasks.fail")
def fail(message):
    raise AssertionError("moved")


@app.task(name="proj.tasks.legacy", bind=True)
def legacy(self, text):
    return {"celery": True, "text": text, "id": self.request.id, "tenant": self.request.get("tenant")}
