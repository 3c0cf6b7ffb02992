"""Publishes tasks with pika, as any Python program can: publish.py URL EXCHANGE ROUTING_KEY BODY [COUNT].

With an empty exchange the routing key is the name of a queue. No properties are set, because a task needs none.
"""

import sys

import pika


def main(url, exchange, routing_key, body, count="1"):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(int(count)):
        channel.basic_publish(exchange, routing_key, body, mandatory=True)
    connection.close()


main(*sys.argv[1:])
