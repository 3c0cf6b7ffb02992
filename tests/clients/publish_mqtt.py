"""Publishes to an MQTT broker all that a publisher can use, with paho: publish_mqtt.py PORT 3.1.1|5 [USER PASSWORD].

A USER is one of RabbitMQ's MQTT plugin, who may publish topics of at most 160 bytes. RabbitMQ has no QoS 2, and refuses longer
topics. The script publishes a message of each on a connection of its own and prints the answer, a line of JSON for each.

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


login = None


def client(name, version):
    """Works with paho 1 and 2."""
    protocol = mqtt.MQTTv5 if version == "5" else mqtt.MQTTv311
    arguments = {"client_id": name, "protocol": protocol}
    if hasattr(mqtt, "CallbackAPIVersion"):
        arguments["callback_api_version"] = mqtt.CallbackAPIVersion.VERSION2
    made = mqtt.Client(**arguments)
    if login:
        made.username_pw_set(*login)
    return made


def payload(number):
    return json.dumps({"number": number, "last_seen": START + number})


def answer_to(port, version, topic, body, qos):
    """Publishes on a connection of its own, and returns what the broker does: `acknowledged` or `disconnected`."""
    seen = []
    sender = client("apart", version)
    sender.on_connect = lambda *_: sender.publish(topic, body, qos)
    sender.on_disconnect = lambda *_: seen.append("disconnected")
    sender.on_publish = lambda *_: seen.append("acknowledged")
    sender.connect("127.0.0.1", port)
    deadline = time.monotonic() + TIMEOUT
    # Unlike loop_start, loop does not connect again.
    while not seen and time.monotonic() < deadline:
        sender.loop(0.1)
    sender.disconnect()
    return seen[0] if seen else "no answer"


def main(port, version, *credentials):
    global login
    login, port = credentials, int(port)
    is_five = version == "5"
    sender = client("device", version)
    sender.connect("127.0.0.1", port)
    sender.loop_start()

    def publish(topic, body, qos, retain=False, properties=None):
        more = {"properties": properties} if properties else {}
        message = sender.publish(topic, body, qos, retain, **more)
        message.wait_for_publish(TIMEOUT)
        if not message.is_published():
            sys.exit(f"no acknowledgement of {topic[:80]}")

    long_topic = "zigbee2mqtt/" + "d" * 65_000
    if login:
        for topic, number, qos in (("zigbee2mqtt/qos", 2, 2), (long_topic, 5, 1)):
            print(json.dumps({"number": number, "answer": answer_to(port, version, topic, payload(number), qos)}))
    else:
        publish("zigbee2mqtt/qos", payload(2), 2)
        publish(long_topic, payload(5), 1)
        publish("zigbee2mqtt/empty", b"", 2)
    for qos in (0, 1):
        publish("zigbee2mqtt/qos", payload(qos), qos)
    publish("zigbee2mqtt/retained", payload(3), 1, retain=True)
    # The longest device name that readings may have.
    publish("zigbee2mqtt/" + "d" * 128, payload(4), 1)
    publish("zigbee2mqtt/müsli/Küche", payload(6), 1)
    publish("zigbee2mqtt/empty", b"", 1)
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
    dying.connect("127.0.0.1", port)
    dying.loop_start()
    deadline = time.monotonic() + TIMEOUT
    while not connected and time.monotonic() < deadline:
        time.sleep(0.01)
    dying.loop_stop()
    dying.socket().close()


main(*sys.argv[1:])
