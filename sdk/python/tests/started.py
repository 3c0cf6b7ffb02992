"""A test with a child that has asked for its first task."""

import sys
import unittest

from fake_worker import Child

MIB = 1 << 20
RUN = {"id": "a1", "attempt": 1}


class Started(unittest.TestCase):
    arguments = ("-m", "garenne", "functions")

    def setUp(self):
        self.child = Child(sys.executable, *self.arguments)
        self.addCleanup(self.child.stop)
        self.hello = self.child.start()

    def answer(self, kind, payload=None, **members):
        """The answer to a task that is answered with nothing else."""
        self.child.task(payload, kind=kind, **members)
        (head, body), _ = self.child.ask(self.expected, "next")
        self.assertEqual((head.pop("id"), head.pop("attempt")), (members.get("id", "a1"), members.get("attempt", 1)))
        return head, body

    def done(self, kind, payload=None, **members):
        self.expected = "done"
        return self.answer(kind, payload, **members)[1]

    def failed(self, outcome, kind, payload=None, **members):
        self.expected = outcome
        head, body = self.answer(kind, payload, **members)
        self.assertIsNone(body)
        del head["type"]
        return head
