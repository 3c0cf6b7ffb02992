import os
import sys
import unittest

from fake_worker import Child


class Programs(unittest.TestCase):
    def start(self, *arguments, **environment):
        child = Child(sys.executable, *arguments, **environment)
        self.addCleanup(child.stop)
        return child

    def test_a_script_serves_any_kind_with_one_function(self):
        child = self.start(os.path.join(os.path.dirname(__file__), "plain.py"))
        self.assertNotIn("kinds", child.start())
        child.task(1, kind="some.kind")
        (_, body), _ = child.ask("done", "next")
        self.assertEqual(body, ["some.kind", 1])

    def test_a_script_serves_its_decorated_functions(self):
        child = self.start(os.path.join(os.path.dirname(__file__), "plain.py"), "tasks")
        self.assertEqual(child.start()["kinds"], ["only.this"])

    def test_a_function_of_a_module(self):
        self.assertNotIn("kinds", self.start("-m", "garenne", "plain:whatever").start())

    def test_a_decorated_function_of_a_module_serves_its_kinds(self):
        self.assertEqual(self.start("-m", "garenne", "functions:echo").start()["kinds"], ["echo"])

    def test_functions_run_in_threads_with_a_concurrency(self):
        child = self.start("-m", "garenne", "functions", "--concurrency", "2")
        self.assertEqual(child.start()["concurrency"], 2)
        child.ask("next")
        for id in ("one", "two"):
            child.task("wait", kind="wait", id=id)
        child.ask("progress", "progress")
        for id in ("two", "one"):
            child.write({"type": "cancel", "id": id, "attempt": 1, "reason": "stopped"})
            (head, body), _ = child.ask("done", "next")
            self.assertEqual((head["id"], body), (id, [True, True, "stopped"]))

    def test_wrong_arguments_are_told(self):
        for arguments, text in (
            (["plain"], "has no function that is decorated"),
            (["plain:missing"], "plain has no missing"),
            (["functions", "--concurrency", "0"], "expected 1 to 1000"),
        ):
            child = self.start("-m", "garenne", *arguments)
            self.assertIsNone(child.read())
            self.assertEqual(child.wait(), 2)
            self.assertIn(text, child.stderr())

    def test_another_version_of_the_protocol_is_refused(self):
        child = self.start("-m", "garenne", "functions", GARENNE_HANDLER_PROTOCOL="2")
        self.assertIsNone(child.read())
        self.assertEqual(child.wait(), 1)
        self.assertIn("the worker has version 2 of the protocol; this SDK needs 1", child.stderr())


if __name__ == "__main__":
    unittest.main()
