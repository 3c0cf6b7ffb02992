import json
import sys
import time
import unittest
import uuid
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import garenne


class Message(unittest.TestCase):
    def test_needs_a_kind_only(self):
        message = garenne.message("image.resize")
        self.assertEqual(
            (message.exchange, message.routing_key, message.body), ("garenne.tasks", "image.resize", b"null")
        )
        properties = dict(message.properties)
        self.assertEqual(str(uuid.UUID(properties.pop("message_id"))), message.id)
        self.assertAlmostEqual(properties.pop("timestamp"), time.time(), delta=5)
        self.assertEqual(properties, {"content_type": "application/json", "delivery_mode": 2, "headers": {}})

    def test_has_the_headers_of_the_wire_format(self):
        message = garenne.message(
            "image.resize",
            {"name": "größe"},
            id="a1",
            key="k",
            group="g",
            delay=1.5,
            timeout=timedelta(minutes=1),
            expires=60,
            reply_to="amq.rabbitmq.reply-to",
            correlation_id="c",
            headers={"tenant": "acme"},
        )
        self.assertEqual(json.loads(message.body), {"name": "größe"})
        headers = dict(message.properties["headers"])
        self.assertAlmostEqual(headers.pop("garenne-published-at"), time.time() * 1000, delta=5000)
        self.assertEqual(
            headers,
            {
                "tenant": "acme",
                "garenne-key": "k",
                "garenne-group": "g",
                "garenne-delay-ms": 1500,
                "garenne-timeout-ms": 60_000,
            },
        )
        self.assertEqual(message.id, "a1")
        self.assertEqual(message.properties["expiration"], "60000")
        self.assertEqual(message.properties["reply_to"], "amq.rabbitmq.reply-to")
        self.assertEqual(message.properties["correlation_id"], "c")

    def test_what_would_be_a_dead_letter_is_refused(self):
        for arguments in (
            {"id": "x" * 129},
            {"id": "a\nb"},
            {"id": ""},
            {"group": ""},
            {"group": "é" * 128},
            {"delay": timedelta(days=31)},
            {"delay": -1},
            {"timeout": timedelta(days=31)},
        ):
            with self.subTest(arguments), self.assertRaises(ValueError):
                garenne.message("k", **arguments)
        for payload in (b"", float("nan"), {1, 2}):
            with self.assertRaisesRegex(garenne.Reject, "the payload is not JSON"):
                garenne.message("k", payload)

    @unittest.skipUnless(__import__("importlib.util").util.find_spec("pika"), "pika is not installed")
    def test_pika_takes_the_properties(self):
        import pika

        properties = pika.BasicProperties(**garenne.message("k", 1, id="a1", group="g", delay=5, expires=1).properties)
        decoded = pika.BasicProperties()
        decoded.decode(b"".join(properties.encode()))
        self.assertEqual((decoded.message_id, decoded.headers["garenne-delay-ms"]), ("a1", 5000))


if __name__ == "__main__":
    unittest.main()
