#!/usr/bin/env python3
"""A reading as a task, from Python with pika: nothing of Garenne is needed on this side.

    pip install pika            # or: apt install python3-pika
    python3 publish_reading.py amqp://guest:guest@127.0.0.1:5672/%2f

A body and a routing key are enough. The rest is worth having: an id makes a repetition harmless, the
persistent mode survives a broker's restart, and a confirm says that a queue has the message.
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
    channel.confirm_delivery()  # basic_publish raises from now on where the broker does not take it
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
