"""Celery with its prefork pool, as in its documentation for an existing queue."""

import os
import sys

from celery import Celery
from kombu import Queue


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


QUEUE = option("--queue")
app = Celery("rival", broker=option("--amqp-url").replace("amqp://", "pyamqp://"))
app.conf.update(
    # Celery recognizes quorum queues by this argument. The queue is not declared, because it exists.
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
    # One write, so that lines of several processes do not mix.
    os.write(1, b"+\n")


if __name__ == "__main__":
    processes = 2
    # Celery's prefetch is this value times the number of processes.
    app.conf.worker_prefetch_multiplier = max(int(option("--prefetch")) // processes, 1)
    app.worker_main(
        [
            "worker", "--pool", "prefork", "--concurrency", str(processes), "--loglevel", "ERROR",
            "--without-gossip", "--without-mingle", "--without-heartbeat", "--queues", QUEUE,
        ]
    )
