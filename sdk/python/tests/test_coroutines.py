import unittest

from started import MIB, RUN, Started


class Coroutines(Started):
    arguments = ("-m", "garenne", "coroutines", "--concurrency", "3")

    def setUp(self):
        super().setUp()
        self.child.ask("next", "next")

    def test_hello_names_the_concurrency(self):
        self.assertEqual(self.hello["concurrency"], 3)

    def test_tasks_run_at_the_same_time(self):
        self.child.task(1, kind="async.meet", id="one")
        self.child.task(2, kind="async.meet", id="two")
        frames = self.child.ask("done", "next", "done", "next")
        answers = sorted((head["id"], body) for head, body in frames if head["type"] == "done")
        self.assertEqual(answers, [("one", 1), ("two", 2)])

    def test_outcomes(self):
        self.assertEqual(self.done("async.echo", "é" * 2 * MIB), "é" * 2 * MIB)
        self.assertEqual(self.failed("reject", "async.raise", "reject"), {"error": "no", "reason": "rejected"})
        self.assertEqual(self.failed("snooze", "async.raise", "snooze"), {"after_ms": 250})
        self.assertRegex(self.failed("retry", "async.raise", "error")["error"], r"^OSError: lost \(coroutines.py:")
        self.assertIn("CancelledError", self.failed("retry", "async.raise", "cancelled")["error"])
        self.assertIn("type set is not JSON", self.failed("reject", "async.output")["error"])
        self.assertEqual(self.failed("reject", "async.echo", body=b"{")["reason"], "invalid-payload")
        self.assertIn("no function", self.failed("retry", "async.missing")["error"])

    def test_cancel_reaches_the_coroutine_of_its_task_only(self):
        self.child.task(kind="async.wait", id="one")
        self.child.task("finish", kind="async.wait", id="two")
        self.child.ask("progress", "progress")
        self.child.write({"type": "cancel", "id": "two", "attempt": 1, "reason": "stopped"})
        (head, body), _ = self.child.ask("done", "next")
        self.assertEqual((head["id"], body), ("two", [True, "stopped"]))
        self.child.write({"type": "cancel", "id": "two", "attempt": 1, "reason": "stopped"})
        self.child.write({"type": "cancel", "id": "one", "attempt": 1, "reason": "deadline"})
        (head, _), _ = self.child.ask("retry", "next")
        self.assertEqual((head["id"], head["error"]), ("one", "cancelled: deadline"))

    def test_cancel_reaches_a_coroutine_that_has_not_begun(self):
        with self.child.held() as data:
            self.child.task(kind="async.wait")
            self.child.write({"type": "cancel", **RUN, "reason": "deadline"})
        self.child.send(data)
        (head, _), _ = self.child.ask("retry", "next")
        self.assertEqual(head["error"], "cancelled: deadline")

    def test_a_function_runs_in_a_thread_and_can_be_cancelled(self):
        self.child.task(kind="async.thread")
        self.child.ask("progress")
        self.assertEqual(self.done("async.echo", 1, id="b2"), 1)
        self.child.write({"type": "cancel", **RUN, "reason": "deadline"})
        (_, body), _ = self.child.ask("done", "next")
        self.assertIs(body, True)

    def test_follow_up_and_log(self):
        self.child.task([1], kind="async.follow_up")
        (head, body), _, _ = self.child.ask("follow_up", "done", "next")
        self.assertEqual((head, body), ({"type": "follow_up", **RUN, "kind": "next.one"}, [1]))
        self.assertIn("of the task id=a1 attempt=1", self.child.stderr())

    def test_bye_lets_running_tasks_finish(self):
        self.child.task("finish", kind="async.wait")
        self.child.ask("progress")
        self.child.write({"type": "bye"})
        self.child.write({"type": "cancel", **RUN, "reason": "shutdown"})
        ((_, body),) = self.child.ask("done")
        self.assertEqual(body, [True, "shutdown"])
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 0)

    def test_the_end_of_the_pipe_lets_running_tasks_finish(self):
        self.child.task(1, kind="async.meet", id="one")
        self.child.task(2, kind="async.meet", id="two")
        self.child.close()
        frames = iter(self.child.read, None)
        self.assertEqual(sorted(head["id"] for head, _ in frames if head["type"] == "done"), ["one", "two"])
        self.assertEqual(self.child.wait(), 0)

    def test_sys_exit_ends_the_child(self):
        self.child.task("exit", kind="async.raise")
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 9)

    def test_a_worker_that_is_gone_is_no_traceback(self):
        self.child.stop_reading()
        self.child.task(1, kind="async.echo")
        self.assertEqual(self.child.wait(), 0)
        self.assertEqual(self.child.stderr(), "garenne: the worker is gone\n")


if __name__ == "__main__":
    unittest.main()
