"""Celery with its prefork pool, as its documentation has it for a queue that is there already."""

import os
import sys

from celery import Celery
from kombu import Queue


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


QUEUE = option("--queue")
app = Celery("rival", broker=option("--amqp-url").replace("amqp://", "pyamqp://"))
app.conf.update(
    # Told as an argument, because Celery takes its quorum queues by it; the queue is there already.
    task_queues=[Queue(QUEUE, queue_arguments={"x-queue-type": option("--type")}, no_declare=True)],
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_ignore_result=True,
    worker_redirect_stdouts=False,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
)


@app.task(name="bench.noop")
def noop(pad):
    # One write: lines of several processes stay whole.
    os.write(1, b"+\n")


if __name__ == "__main__":
    processes = 2
    # Celery multiplies: messages held are processes times this.
    app.conf.worker_prefetch_multiplier = max(int(option("--prefetch")) // processes, 1)
    app.worker_main(
        [
            "worker", "--pool", "prefork", "--concurrency", str(processes), "--loglevel", "ERROR",
            "--without-gossip", "--without-mingle", "--without-heartbeat", "--queues", QUEUE,
        ]
    )
