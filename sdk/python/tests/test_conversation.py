"""The SDK speaks as the protocol's page shows it."""

import json
import sys
import unittest
from pathlib import Path

from fake_worker import Child

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/reference/handlers.md"


def recorded():
    """The lines of the recorded conversation: direction, head, body."""
    section = PAGE.read_text().split("\n## Recorded conversation\n")[1]
    lines = section.split("```text\n")[1].split("```")[0].splitlines()
    decoder = json.JSONDecoder()
    for line in lines:
        head, end = decoder.raw_decode(line, 2)
        body = line[end:].strip()
        yield line[0], head, json.loads(body) if body else None


class Recorded(unittest.TestCase):
    def test_the_recorded_conversation(self):
        child = Child(sys.executable, str(Path(__file__).parent / "recorded.py"))
        self.addCleanup(child.stop)
        conversation = list(recorded())
        self.assertGreater(len(conversation), 10)
        for direction, head, body in conversation:
            if direction == ">":
                child.write(head, b"" if body is None else json.dumps(body).encode())
                continue
            found, found_body = child.read()
            if str(head.get("error")).startswith("cancelled"):
                head["error"] = found["error"]
                self.assertEqual(found["error"], "cancelled: shutdown")
            self.assertEqual((found, found_body), (head, body))
        # The last message was bye. The child may have asked for a task before it came.
        self.assertIn([head["type"] for head, _ in iter(child.read, None)], ([], ["next"]))
        self.assertEqual(child.wait(), 0)


if __name__ == "__main__":
    unittest.main()
