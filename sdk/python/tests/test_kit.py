import sys
import types
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import coroutines
import functions
import garenne
import garenne.testing as kit
from garenne._registry import registered


class Run(unittest.TestCase):
    def test_done_with_follow_ups_and_progress(self):
        result = kit.run(functions.follow_up)
        self.assertEqual((result.outcome, result.output), ("done", None))
        self.assertEqual(result.follow_ups[0], kit.FollowUp("next.one", {"name": "größe"}))
        self.assertEqual(result.follow_ups[1].options["delay_ms"], 1500)
        self.assertEqual(kit.run(functions.progress).progress, [0.0, 1.0])

    def test_a_kind_is_a_decorated_function(self):
        self.assertEqual(kit.run("describe", attempt=3, headers={"tenant": "acme"}, group="g").output["attempt"], 3)
        self.assertEqual(kit.run(functions.describe, headers={"tenant": "acme"}).output["headers"], {"tenant": "acme"})
        self.assertEqual(kit.run(functions.describe).output["kind"], "describe")

    def test_outcomes(self):
        reject = kit.run(functions.fail, ["invalid", "no"])
        self.assertEqual((reject.outcome, reject.error, reject.reason), ("reject", "no", "invalid-payload"))
        retry = kit.run(functions.fail, ["retry-after"])
        self.assertEqual((retry.outcome, retry.error, retry.after), ("retry", "the server is down", 1.5))
        self.assertEqual(kit.run(functions.fail, ["snooze"]).after, 30)

    def test_the_payload_and_the_output_pass_through_json(self):
        self.assertEqual(kit.run(lambda payload: (1, 2), None).output, [1, 2])
        with self.assertRaises(TypeError):
            kit.run(lambda payload: None, {1, 2})
        self.assertEqual(kit.run(lambda payload: len(payload), b"\0\xff").output, 2)

    def test_cancel(self):
        result = kit.run(functions.wait, "check", cancel="stopped")
        self.assertEqual((result.outcome, result.error), ("retry", "cancelled: stopped"))
        self.assertEqual(kit.run(functions.nap, 1000).output, False)

    def test_coroutines(self):
        self.assertEqual(kit.run(coroutines.echo, 1).output, 1)
        self.assertEqual(kit.run(coroutines.fail, "snooze").after, 0.25)
        self.assertEqual(kit.run(coroutines.wait, cancel="deadline").error, "cancelled: deadline")
        self.assertEqual(kit.run(coroutines.wait, "finish", cancel="deadline").output, [True, "deadline"])


class Functions(unittest.TestCase):
    def test_a_function_takes_the_payload_or_the_context_and_the_payload(self):
        self.assertEqual(kit.run(lambda payload: payload, 1).output, 1)
        self.assertEqual(kit.run(lambda cx, payload: [cx.attempt, payload], 1).output, [1, 1])
        self.assertEqual(kit.run(lambda payload, factor=2: payload * factor, 1).output, 2)
        for wrong in (lambda: 1, lambda a, b, c: 1, lambda payload, *, other: 1):
            with self.assertRaisesRegex(TypeError, r"expected \(payload\) or \(cx, payload\)"):
                kit.run(wrong)

    def test_a_kind_has_one_function(self):
        with self.assertRaisesRegex(ValueError, "the kind echo has two functions"):
            garenne.task("echo")(print)

    def test_task_needs_a_kind(self):
        with self.assertRaises(TypeError):
            garenne.task(lambda payload: None)

    def test_a_decorated_function_stays_as_it_is(self):
        self.assertEqual(functions.echo(7), 7)

    def test_run_outside_a_worker_says_so(self):
        with self.assertRaisesRegex(SystemExit, "this program is started by a worker"):
            garenne.run()


class Errors(unittest.TestCase):
    def test_times_are_seconds_or_timedelta_and_never_rounded_to_less(self):
        self.assertEqual(garenne.Snooze(1.5).after_ms, 1500)
        self.assertEqual(garenne.Snooze(timedelta(minutes=1)).after_ms, 60_000)
        self.assertEqual(garenne.Retry("x", after=0.0001).after_ms, 1)
        for wrong in (-1, float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "expected a number of seconds from 0"):
                garenne.Snooze(wrong)

    def test_an_unknown_reason_is_refused(self):
        with self.assertRaisesRegex(ValueError, "reason is 'oops'"):
            garenne.Reject("x", reason="oops")


class Calls(unittest.TestCase):
    """What a lane with `celery = true` gives."""

    def test_a_function_takes_the_arguments_of_a_call(self):
        @garenne.task("test.call", call=True)
        def send(to, *, subject="none"):
            return [to, subject]

        self.addCleanup(registered.pop, "test.call")
        def run(payload):
            return kit.run(send, payload)

        self.assertEqual(run({"args": ["a"], "kwargs": {"subject": "b"}}).output, ["a", "b"])
        self.assertEqual(run({"args": ["a"]}).output, ["a", "none"])
        self.assertEqual(run({"args": []}).outcome, "retry")
        for payload in ({"to": "a"}, {"args": "a"}, {"args": [], "kwargs": []}, [["a"], {}], None):
            self.assertEqual(run(payload).reason, "invalid-payload", payload)

    def test_a_celery_task_takes_the_arguments_of_a_call(self):
        class Task:
            def apply_async(self):
                raise AssertionError("it is not published again")

            def __call__(self, a, b):
                return a + b

        self.assertEqual(kit.run(Task(), {"args": [2], "kwargs": {"b": 3}}).output, 5)


class CeleryTask:
    """As much of Celery's task as a call with a request needs."""

    __module__ = "celery.app.task"
    max_retries = 3

    def __init__(self, function):
        self.function = function
        self.requests = [types.SimpleNamespace(id=None, retries=0, called_directly=True)]
        self.published = []

    def push_request(self, **request):
        self.requests.append(types.SimpleNamespace(**request))

    def pop_request(self):
        self.requests.pop()

    @property
    def request(self):
        return self.requests[-1]

    def __call__(self, *args, **kwargs):
        self.push_request(id=None, retries=0, args=args, kwargs=kwargs, called_directly=True)
        try:
            return self.run(*args, **kwargs)
        finally:
            self.pop_request()

    def run(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)

    def apply_async(self):
        raise AssertionError("it is not published again")

    def signature_from_request(self, request=None, args=None, kwargs=None, **options):
        return self

    def retry(self, args=None, kwargs=None, exc=None, eta=None, countdown=None):
        if self.request.called_directly:
            raise exc or CeleryRetry("Task can be retried", None)
        signature = self.signature_from_request(self.request, args, kwargs, countdown=countdown, eta=eta)
        if self.request.retries + 1 > self.max_retries:
            raise exc or ValueError(f"max retries exceeded: {signature.args} {signature.kwargs}")
        signature.apply_async()
        raise CeleryRetry("busy", eta or countdown)


class CeleryRetry(Exception):
    __module__ = "celery.exceptions"
    __qualname__ = "Retry"

    def __init__(self, message, when):
        super().__init__(message)
        self.when = when


class CeleryTasks(unittest.TestCase):
    def run_as(self, task, *args, **options):
        result = kit.run(task, {"args": list(args), "kwargs": {}}, **options)
        self.assertEqual(len(task.requests), 1, "the request was not taken back")
        return result

    def test_the_request_is_that_of_the_task(self):
        task = CeleryTask(lambda self, a: [self.request.id, self.request.retries, self.request.args, a])
        self.assertEqual(self.run_as(task, 7, id="t1", attempt=3).output, ["t1", 2, [7], 7])

    def test_an_application_may_have_its_own_way_to_call(self):
        class ContextTask(CeleryTask):
            def __call__(self, *args, **kwargs):
                return ["in context", self.run(*args, **kwargs)]

        task = ContextTask(lambda self: self.request.id)
        self.assertEqual(self.run_as(task, id="t1").output, ["in context", "t1"])

    def test_retry_is_that_of_the_worker(self):
        def retried(*args, **options):
            return self.run_as(CeleryTask(lambda self, *_: self.retry(**options)), *args)

        result = retried(countdown=1.5)
        self.assertEqual((result.outcome, result.error, result.after), ("retry", "busy", 1.5))
        in_a_minute = datetime.now(timezone.utc) + timedelta(minutes=1)
        for eta in (in_a_minute, in_a_minute.replace(tzinfo=None), in_a_minute.astimezone(timezone(timedelta(hours=9)))):
            self.assertTrue(55 < retried(eta=eta).after <= 60, eta)
        self.assertEqual(retried(eta=in_a_minute - timedelta(hours=1)).after, 0)
        self.assertIsNone(retried().after)
        self.assertEqual(retried(1, args=(1,), kwargs={}).outcome, "retry")
        self.assertEqual(retried(1, args=(2,)).outcome, "reject")

    def test_after_celerys_last_retry_the_error_is_the_tasks(self):
        def fail(self):
            self.retry(exc=OSError("the server is down"), countdown=5)

        result = self.run_as(CeleryTask(fail), attempt=4)
        self.assertEqual((result.outcome, result.after), ("retry", None))
        self.assertIn("OSError: the server is down", result.error)


if __name__ == "__main__":
    unittest.main()
