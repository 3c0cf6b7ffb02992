"""Dramatiq as its documentation has it: two processes of eight threads each."""

import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

broker = RabbitmqBroker(url=os.environ["RIVAL_AMQP_URL"], middleware=[])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["RIVAL_QUEUE"], actor_name="bench.noop")
def noop(pad):
    # One write: lines of several processes stay whole.
    os.write(1, b"+\n")


if __name__ == "__main__":

    def option(name):
        return sys.argv[sys.argv.index(name) + 1]

    os.environ["RIVAL_AMQP_URL"] = option("--amqp-url")
    os.environ["RIVAL_QUEUE"] = option("--queue")
    # Messages held, of each process.
    os.environ["dramatiq_prefetch"] = str(max(int(option("--prefetch")) // 2, 1))
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    dramatiq_main = os.path.join(os.path.dirname(sys.executable), "dramatiq")
    os.execv(sys.executable, [sys.executable, dramatiq_main, "dramatiq_rival", "--processes", "2", "--threads", "8"])
