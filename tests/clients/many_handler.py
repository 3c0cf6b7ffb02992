"""A handler that runs four tasks at once, each in a thread, and ends in the middle of them if one asks for it."""

import json
import os
import struct
import sys
import threading
import time

INPUT = os.fdopen(int(os.environ["GARENNE_HANDLER_IN"]), "rb")
OUTPUT = os.fdopen(int(os.environ["GARENNE_HANDLER_OUT"]), "wb")
LOCK = threading.Lock()


def send(head):
    head = json.dumps(head).encode()
    with LOCK:
        OUTPUT.write(struct.pack(">II", len(head), 0) + head)
        OUTPUT.flush()


def run(task, payload):
    time.sleep(payload.get("seconds", 0))
    if payload.get("abort"):
        os.abort()
    send({"type": "done", "id": task["id"], "attempt": task["attempt"]})
    send({"type": "next"})


send({"type": "hello", "protocol": 1, "sdk": "many/1", "concurrency": 4})
for _ in range(4):
    send({"type": "next"})
while frame := INPUT.read(8):
    head, body = struct.unpack(">II", frame)
    head, body = json.loads(INPUT.read(head)), INPUT.read(body)
    if head["type"] == "bye":
        break
    if head["type"] == "task":
        payload = json.loads(body)
        # Nothing is read meanwhile, as when a function blocks an event loop.
        time.sleep(payload.get("block", 0))
        threading.Thread(target=run, args=(head, payload)).start()
