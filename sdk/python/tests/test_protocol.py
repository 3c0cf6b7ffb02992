import os
import signal
import time
import unittest

from started import MIB, RUN, Started


class Conversation(Started):
    def test_hello_names_the_protocol_the_sdk_and_the_kinds(self):
        kinds = self.hello.pop("kinds")
        self.assertEqual(self.hello, {"type": "hello", "protocol": 1, "sdk": "garenne-python/0.1.0", "concurrency": 1})
        self.assertEqual(kinds, sorted(kinds))
        self.assertIn("echo", kinds)

    def test_two_tasks_in_a_row(self):
        self.assertEqual(self.done("echo", 1), 1)
        self.assertEqual(self.done("echo", {"a": [None, True, 1.5]}, id="b2", attempt=2), {"a": [None, True, 1.5]})

    def test_a_handler_that_has_closed_stderr_keeps_its_error_and_its_process(self):
        self.assertIn("the reason", self.failed("retry", "close-stderr")["error"])
        self.assertEqual(self.done("echo", 1, id="next"), 1)

    def test_unicode_passes_unchanged(self):
        text = 'ä€😀\u2028"\\\n\0'
        self.assertEqual(self.done("echo", {text: text}, id="größe-😀"), {text: text})

    def test_a_payload_of_4_mib_comes_back(self):
        text = "é" * (2 * MIB)
        self.assertEqual(self.done("echo", text), text)

    def test_frames_may_arrive_in_pieces(self):
        with self.child.held() as data:
            self.child.task([1], kind="echo")
        for at in range(0, len(data), 7):
            self.child.send(data[at : at + 7])
        (_, body), _ = self.child.ask("done", "next")
        self.assertEqual(body, [1])

    def test_the_context_has_what_the_task_has(self):
        found = self.done(
            "describe",
            attempt=3,
            lane="bulk",
            group="g",
            key="k",
            headers={"tenant": "acme", "n": 1, "b": True},
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            tracestate="a=b",
            enqueued_at="2026-11-29T10:00:00.123456789Z",
        )
        self.assertAlmostEqual(found.pop("remaining"), 600, delta=5)
        self.assertAlmostEqual(found.pop("deadline"), time.time() + 600, delta=5)
        self.assertEqual(
            found,
            {
                "id": "a1",
                "kind": "describe",
                "attempt": 3,
                "lane": "bulk",
                "group": "g",
                "key": "k",
                "headers": {"tenant": "acme", "n": 1, "b": True},
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "tracestate": "a=b",
                "enqueued_at": "2026-11-29T10:00:00.123456+00:00",
                "cancelled": False,
                "payload": "None",
            },
        )

    def test_what_a_task_does_not_have_is_none(self):
        found = self.done("describe")
        for name in ("lane", "group", "key", "traceparent", "tracestate", "enqueued_at"):
            self.assertIsNone(found[name], name)

    def test_a_payload_that_is_not_json_by_its_type_is_bytes(self):
        found = self.done("describe", body=b"\x00\xff", content_type="application/octet-stream")
        self.assertEqual(found["payload"], r"b'\x00\xff'")
        found = self.done("describe", body=b"[1]", content_type="application/senml+json; charset=utf-8")
        self.assertEqual(found["payload"], "[1]")

    def test_a_payload_that_is_broken_is_rejected(self):
        for body in (b"{", b"\xff", b"NaN", b"", b"[" * 100_000):
            head = self.failed("reject", "echo", body=body)
            self.assertEqual(head["reason"], "invalid-payload")
            self.assertIn("the payload is not JSON: ", head["error"])

    def test_unknown_types_and_members_are_ignored(self):
        self.child.write({"type": "weather", "id": "a1"}, b"body")
        self.child.write({"kind": "no type"})
        self.assertEqual(self.done("echo", 1, unknown={"a": 1}), 1)

    def test_a_kind_without_a_function_is_retried(self):
        self.assertIn("no function for the kind missing", self.failed("retry", "missing")["error"])


class Outcomes(Started):
    def test_reject(self):
        self.assertEqual(self.failed("reject", "raise", ["reject", "no"]), {"error": "no", "reason": "rejected"})

    def test_reject_of_the_payload(self):
        head = self.failed("reject", "raise", ["invalid", "width is -1"])
        self.assertEqual(head, {"error": "width is -1", "reason": "invalid-payload"})

    def test_retry(self):
        self.assertEqual(self.failed("retry", "raise", ["retry", "later"]), {"error": "later"})
        self.assertEqual(self.failed("retry", "raise", ["retry"]), {"error": "retry"})
        head = self.failed("retry", "raise", ["retry-after"])
        self.assertEqual(head, {"error": "the server is down", "after_ms": 1500})

    def test_a_retry_without_a_text_has_that_of_its_cause(self):
        head = self.failed("retry", "cause")
        self.assertRegex(head["error"], r"^KeyError: 'missing' \(functions.py:\d+ in cause\)$")

    def test_snooze(self):
        self.assertEqual(self.failed("snooze", "raise", ["snooze"]), {"after_ms": 30_000})

    def test_an_exception_is_a_retry_with_type_message_and_frame(self):
        head = self.failed("retry", "raise", ["error", "width is -1"])
        self.assertEqual(list(head), ["error"])
        self.assertRegex(head["error"], r"^ValueError: width is -1 \(functions.py:\d+ in fail\)$")
        lines = self.child.stderr().splitlines()
        self.assertEqual(lines[0], "Traceback (most recent call last):")
        self.assertRegex(lines[1], r'^  File ".*/functions.py", line \d+, in fail$')  # no frames of the SDK
        self.assertEqual(lines[-1], "ValueError: width is -1")
        self.assertEqual(self.done("echo", 1), 1)

    def test_a_long_error_loses_its_middle(self):
        head = self.failed("retry", "raise", ["error", "\0" * 100_000])
        self.assertLess(len(head["error"]), 8_001)

    def test_sys_exit_ends_the_child(self):
        self.child.task(["exit", 3], kind="raise")
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 3)

    def test_an_output_that_is_not_json_is_rejected(self):
        for payload, text in {
            "bytes": "the output is not JSON: Object of type bytes is not JSON serializable",
            "object": "the output is not JSON: Object of type object is not JSON serializable",
            "nan": "the output is not JSON: Out of range float values are not JSON compliant",
            "infinity": "the output is not JSON: Out of range float values are not JSON compliant",
            "surrogate": "the output is not JSON: 'utf-8' codec can't encode",
            "loop": "the output is not JSON: Circular reference detected",
            "large": "the output has 9437186 bytes; the limit is 8388608",
        }.items():
            with self.subTest(payload):
                head = self.failed("reject", "output", payload)
                self.assertEqual(head["reason"], "rejected")
                self.assertTrue(head["error"].startswith(text), head["error"])

    def test_no_output_is_null(self):
        self.assertIsNone(self.done("output", "none"))


class Reports(Started):
    def test_follow_ups_come_before_the_answer(self):
        self.child.task(kind="follow_up")
        (one, one_body), (two, two_body), _, _ = self.child.ask("follow_up", "follow_up", "done", "next")
        self.assertEqual((one, one_body), ({"type": "follow_up", **RUN, "kind": "next.one"}, {"name": "größe"}))
        self.assertEqual(
            two,
            {
                "type": "follow_up",
                **RUN,
                "kind": "next.two",
                "task_id": "t2",
                "delay_ms": 1500,
                "key": "k",
                "group": "g",
                "timeout_ms": 60_000,
                "headers": {"tenant": "acme", "n": 1, "b": True},
            },
        )
        self.assertIsNone(two_body)

    def test_a_follow_up_that_cannot_be_sent_rejects_the_task(self):
        self.child.task("bad", kind="follow_up")
        *_, (head, _), _ = self.child.ask("follow_up", "follow_up", "reject", "next")
        self.assertIn("the payload of the follow-up next.three is not JSON: Object of type set", head["error"])
        self.child.task("large", kind="follow_up")
        *_, (head, _), _ = self.child.ask("follow_up", "follow_up", "reject", "next")
        self.assertIn("the payload of the follow-up next.three has 9437186 bytes", head["error"])
        self.child.task("headers", kind="follow_up")
        *_, (head, _), _ = self.child.ask("follow_up", "follow_up", "reject", "next")
        self.assertRegex(
            head["error"], "the follow-up next.three cannot be sent: the head of follow_up has 7.... bytes"
        )

    def test_progress_is_bounded_and_not_sent_more_often_than_needed(self):
        self.child.task(kind="progress")
        (first, _), (last, _), *_ = self.child.ask("progress", "progress", "done", "next")
        self.assertEqual(first, {"type": "progress", **RUN, "done": 0.0})
        self.assertEqual(last["done"], 1.0)

    def test_after_the_answer_nothing_is_sent_for_a_task(self):
        self.done("late")
        head = self.failed("retry", "late", id="b2")
        self.assertIn("the task a1 has ended", head["error"])

    def test_print_and_garbage_go_to_stdout(self):
        self.assertEqual(self.done("noise"), "quiet")
        self.assertEqual(self.child.stdout(), "printed\n\0\ufffd\0\0{garbagefrom a shell\n")

    def test_programs_that_a_handler_starts_do_not_get_the_descriptors(self):
        self.assertEqual(self.done("descriptors"), [])

    def test_a_fork_cannot_write_frames(self):
        self.assertEqual(self.done("fork"), 7)

    def test_a_log_record_is_one_line_on_stderr(self):
        self.done("log")
        self.assertEqual(
            self.child.stderr().splitlines(),
            ["WARNING app: two\\nlines id=a1 attempt=1", "INFO garenne.task: of the task id=a1 attempt=1"],
        )

    def test_log_handler_sends_frames(self):
        self.child.task("frames", kind="log")
        (warning, _), (debug, _), _, _ = self.child.ask("log", "log", "done", "next")
        self.assertEqual(warning, {"type": "log", "level": "warn", "message": "two\nlines", **RUN})
        self.assertEqual(debug["level"], "debug")


class Cancel(Started):
    def test_reaches_a_function_that_checks(self):
        for payload in ("check", "progress", "swallow"):
            self.child.task(payload, kind="wait")
            self.child.ask("progress")
            self.child.write({"type": "cancel", **RUN, "reason": "deadline"})
            frame = self.child.read()
            while frame[0]["type"] == "progress":
                frame = self.child.read()
            self.assertEqual(frame, ({"type": "retry", **RUN, "error": "cancelled: deadline"}, None))
            self.child.ask("next")

    def test_ends_a_wait_at_once(self):
        self.child.task("wait", kind="wait")
        self.child.ask("progress")
        self.child.write({"type": "weather"})
        self.child.write({"type": "cancel", "id": "other", "attempt": 1, "reason": "stopped"})
        self.child.write({"type": "cancel", "id": "a1", "attempt": 2, "reason": "stopped"})
        self.child.write({"type": "cancel", **RUN, "reason": "shutdown"})
        (_, body), _ = self.child.ask("done", "next")
        self.assertEqual(body, [True, True, "shutdown"])

    def test_a_wait_without_a_cancel_ends_in_time(self):
        started = time.monotonic()
        self.child.task(0.25, kind="nap")
        _, (_, body), _ = self.child.ask("progress", "done", "next")
        self.assertIs(body, False)
        self.assertGreaterEqual(time.monotonic() - started, 0.25)

    def test_after_the_answer_means_nothing(self):
        self.done("echo", 1)
        self.child.write({"type": "cancel", **RUN, "reason": "deadline"})
        found = self.done("describe")  # the same id and attempt
        self.assertIs(found["cancelled"], False)


class End(Started):
    def test_by_the_end_of_the_pipe(self):
        self.child.close()
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 0)
        self.assertEqual(self.child.stderr(), "")

    def test_by_bye(self):
        self.child.write({"type": "bye"})
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 0)

    def test_by_bye_while_a_task_runs(self):
        self.child.task("wait", kind="wait")
        self.child.ask("progress")
        self.child.write({"type": "bye"})
        self.child.write({"type": "cancel", **RUN, "reason": "shutdown"})
        self.child.ask("done")
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 0)

    def test_by_the_end_of_the_pipe_while_a_task_runs(self):
        self.child.task(0.1, kind="nap")
        self.child.ask("progress")
        self.child.close()
        self.child.ask("done")
        self.assertIsNone(self.child.read())
        self.assertEqual(self.child.wait(), 0)

    def test_a_worker_that_is_gone_is_no_traceback(self):
        self.child.stop_reading()
        self.child.task(1)
        self.assertEqual(self.child.wait(), 0)
        self.assertEqual(self.child.stderr(), "garenne: the worker is gone\n")

    def test_an_interrupt_is_ignored(self):
        os.kill(self.child.pid, signal.SIGINT)
        self.assertEqual(self.done("echo", 1), 1)

    def test_sigterm_ends_the_child(self):
        os.kill(self.child.pid, signal.SIGTERM)
        self.assertEqual(self.child.wait(), -signal.SIGTERM)

    def test_a_head_that_is_no_json_is_an_error(self):
        self.child.send(b"\0\0\0\x01\0\0\0\0x")
        self.assertEqual(self.child.wait(), 1)
        self.assertIn("a head that is not JSON", self.child.stderr())


if __name__ == "__main__":
    unittest.main()
