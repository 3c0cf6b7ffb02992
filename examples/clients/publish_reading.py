#!/usr/bin/env python3
"""Publishes a reading as a task, from Python with pika and without a Garenne library.

    pip install pika            # or: apt install python3-pika
    python3 publish_reading.py amqp://guest:guest@127.0.0.1:5672/%2f

A body and a routing key are sufficient. The rest is recommended: with an id, a repetition has no second effect; a
persistent message survives a restart of the broker; and a confirm means that a queue has the message.
"""

import json
import sys
import uuid
from datetime import datetime, timezone

import pika

EXCHANGE = "garenne.tasks"
KIND = "reading.process"


def main() -> int:
    url = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@127.0.0.1:5672/%2f"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()  # from now on, basic_publish raises if the broker does not store the message
    reading = {
        "device": "python-1",
        "metric": "temperature",
        "value": 21.5,
        "unit": "Cel",
        "time": datetime.now(timezone.utc).isoformat(),
    }
    task_id = str(uuid.uuid4())
    properties = pika.BasicProperties(
        message_id=task_id,
        content_type="application/json",
        delivery_mode=pika.DeliveryMode.Persistent.value,
    )
    channel.basic_publish(EXCHANGE, KIND, json.dumps(reading), properties, mandatory=True)
    connection.close()
    print(task_id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
