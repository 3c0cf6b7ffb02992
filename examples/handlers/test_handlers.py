"""Runs the handlers of this directory as a worker does, without a broker."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "sdk/python/tests"))

from fake_worker import Child

CONTENT = "größe\n".encode()
EXPECTED = {"sha256": hashlib.sha256(CONTENT).hexdigest(), "bytes": len(CONTENT)}


class WithFile(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = str(Path(directory.name) / 'a "größe".txt')
        Path(self.path).write_bytes(CONTENT)


@unittest.skipUnless(shutil.which("java"), "java is not installed")
class Java(WithFile):
    def setUp(self):
        super().setUp()
        self.child = Child("java", str(HERE / "Checksum.java"))
        self.addCleanup(self.child.stop)
        self.hello = self.child.ask("hello", "next", "next", "next", "next")[0][0]

    def answer(self, outcome, payload=None, **members):
        self.child.task(payload, kind="file.checksum", **members)
        return self.child.ask(outcome, "next")[0]

    def test_hello_names_the_kind(self):
        hello = {"type": "hello", "protocol": 1, "kinds": ["file.checksum"], "concurrency": 4}
        self.assertEqual(self.hello, hello)

    def test_outcomes(self):
        head, body = self.answer("done", {"path": self.path, "more": [1, -2.5e3, None, True, "\u2028\n"]}, attempt=2)
        self.assertEqual((head["id"], head["attempt"], body), ("a1", 2, EXPECTED))
        self.assertEqual(self.answer("reject", {})[0]["error"], "the payload has no path")
        self.assertEqual(self.answer("reject", {"path": "/missing"})[0]["error"], "/missing does not exist")
        for broken in (b"", b"{", b"[1]", b'{"a":tru}', b'{"a":"\\x"}', b"{} {}"):
            self.assertEqual(self.answer("reject", body=broken)[0]["reason"], "invalid-payload", broken)
        self.assertIn("Is a directory", self.answer("retry", {"path": "/"})[0]["error"])

    def test_cancel_and_bye(self):
        # The file is as long as it needs to be: the task runs until it is cancelled.
        self.child.write({"type": "weather"})
        self.child.task({"path": "/dev/zero"}, kind="file.checksum", id="zero")
        self.assertEqual(self.answer("done", {"path": self.path})[1], EXPECTED)
        self.child.write({"type": "bye"})
        self.child.write({"type": "cancel", "id": "zero", "attempt": 1, "reason": "shutdown"})
        head, _ = self.child.ask("retry")[0]
        self.assertEqual((head["id"], head["error"]), ("zero", "cancelled"))
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 0)

    def test_the_end_of_the_pipe_ends_the_program(self):
        self.child.close()
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 0)


@unittest.skipUnless(shutil.which("bash") and shutil.which("jq"), "bash or jq is not installed")
class Shell(WithFile):
    def run_task(self, payload):
        return subprocess.run([str(HERE / "checksum.sh")], input=payload, capture_output=True)

    def test_done(self):
        found = self.run_task(json.dumps({"path": self.path}).encode())
        self.assertEqual((found.returncode, json.loads(found.stdout), found.stderr), (0, EXPECTED, b""))

    def test_rejected(self):
        for payload, error in (
            (b"{}", b"the payload has no path\n"),
            (b'{"path": 1}', b"the payload has no path\n"),
            (b"no JSON", b"the payload has no path\n"),
            (b'{"path": "/missing"}', b"/missing is no file\n"),
        ):
            found = self.run_task(payload)
            self.assertEqual((found.returncode, found.stdout, found.stderr), (65, b"", error))

    @unittest.skipIf(os.geteuid() == 0, "root may read every file")
    def test_retried(self):
        os.chmod(self.path, 0)
        self.assertEqual(self.run_task(json.dumps({"path": self.path}).encode()).returncode, 75)


if __name__ == "__main__":
    unittest.main()
