"""Dramatiq as in its documentation: two processes with eight threads each."""

import os
import sys

if __name__ == "__main__":
    # Runs Dramatiq's program, which imports this module.

    def option(name):
        return sys.argv[sys.argv.index(name) + 1]

    here = os.path.abspath(__file__)
    os.environ["RIVAL_AMQP_URL"] = option("--amqp-url")
    os.environ["RIVAL_QUEUE"] = option("--queue")
    # The prefetch of each process.
    os.environ["dramatiq_prefetch"] = str(max(int(option("--prefetch")) // 2, 1))
    os.environ["PYTHONPATH"] = os.path.dirname(here)
    module = os.path.splitext(os.path.basename(here))[0]
    program = [sys.executable, "-m", "dramatiq", module, "--processes", "2", "--threads", "8"]
    os.execv(sys.executable, program)

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

broker = RabbitmqBroker(url=os.environ["RIVAL_AMQP_URL"], middleware=[])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["RIVAL_QUEUE"], actor_name="bench.noop")
def noop(pad):
    # One write, so that lines of several processes do not mix.
    os.write(1, b"+\n")
