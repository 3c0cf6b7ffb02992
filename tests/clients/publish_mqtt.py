"""Publishes to an MQTT broker all that a publisher can use, with paho: publish_mqtt.py PORT 3.1.1|5.

Each message has its own time in `last_seen`, and its number as value, so that a test can tell which of them arrived. Messages of
QoS 0 are sent on a connection that also has messages of higher QoS after them, so that the broker has read them.
"""

import json
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.properties import PacketTypes, Properties

# Seconds to wait for an acknowledgement.
TIMEOUT = 30
START = 1_790_000_000_000


def client(name, version):
    """Works with paho 1 and 2."""
    protocol = mqtt.MQTTv5 if version == "5" else mqtt.MQTTv311
    arguments = {"client_id": name, "protocol": protocol}
    if hasattr(mqtt, "CallbackAPIVersion"):
        arguments["callback_api_version"] = mqtt.CallbackAPIVersion.VERSION2
    return mqtt.Client(**arguments)


def payload(number):
    return json.dumps({"number": number, "last_seen": START + number})


def main(port, version):
    is_five = version == "5"
    sender = client("device", version)
    sender.connect("127.0.0.1", int(port))
    sender.loop_start()

    def publish(topic, body, qos, retain=False, properties=None):
        more = {"properties": properties} if properties else {}
        message = sender.publish(topic, body, qos, retain, **more)
        message.wait_for_publish(TIMEOUT)
        if not message.is_published():
            sys.exit(f"no acknowledgement of {topic[:80]}")

    for qos in (0, 1, 2):
        publish("zigbee2mqtt/qos", payload(qos), qos)
    publish("zigbee2mqtt/retained", payload(3), 1, retain=True)
    # The longest device name that readings may have, and a topic whose name is no reading's.
    publish("zigbee2mqtt/" + "d" * 128, payload(4), 1)
    publish("zigbee2mqtt/" + "d" * 65_000, payload(5), 1)
    publish("zigbee2mqtt/müsli/Küche", payload(6), 1)
    publish("zigbee2mqtt/empty", b"", 1)
    publish("zigbee2mqtt/empty", b"", 2)
    publish("plant/bytes", bytes(range(256)), 1)
    if is_five:
        described = Properties(PacketTypes.PUBLISH)
        described.UserProperty = [("garenne-attempt", "99"), ("site", "north"), ("site", "again")]
        described.ContentType = "application/json"
        described.MessageExpiryInterval = 3600
        described.ResponseTopic = "answers"
        described.CorrelationData = b"\x00\xff"
        described.PayloadFormatIndicator = 1
        publish("zigbee2mqtt/properties", payload(7), 1, properties=described)
        publish("plant/properties", b"71.5", 1, properties=described)
        alias = Properties(PacketTypes.PUBLISH)
        alias.TopicAlias = 1
        publish("zigbee2mqtt/alias", payload(8), 1, properties=alias)
        publish("", payload(9), 1, properties=alias)
    sender.disconnect()
    sender.loop_stop()

    # A will, which the broker publishes because the connection ends without DISCONNECT.
    dying = client("dying", version)
    dying.will_set("zigbee2mqtt/will", payload(10), qos=1)
    connected = []
    dying.on_connect = lambda *_: connected.append(True)
    dying.connect("127.0.0.1", int(port))
    dying.loop_start()
    deadline = time.monotonic() + TIMEOUT
    while not connected and time.monotonic() < deadline:
        time.sleep(0.01)
    dying.loop_stop()
    dying.socket().close()


main(*sys.argv[1:])
