package garenne

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/garenne/garenne/sdk/go/internal/frame"
)

func equal(t *testing.T, found, expected any) {
	t.Helper()
	if !reflect.DeepEqual(found, expected) {
		t.Fatalf("got %#v; expected %#v", found, expected)
	}
}

func matches(t *testing.T, text any, pattern string) {
	t.Helper()
	if found, ok := text.(string); !ok || !regexp.MustCompile(pattern).MatchString(found) {
		t.Fatalf("got %v; expected %s", text, pattern)
	}
}

func TestHelloNamesTheProtocolTheSDKAndTheKinds(t *testing.T) {
	hello := start(t, "one").ask("hello")[0].Head
	kinds := hello["kinds"].([]any)
	delete(hello, "kinds")
	equal(t, hello, map[string]any{"type": "hello", "protocol": 1., "sdk": "garenne-go/0.1.0", "concurrency": 1.})
	equal(t, len(kinds), len(testHandlers()))
}

func TestTwoTasksInARow(t *testing.T) {
	c := started(t, "one", 1)
	equal(t, c.answer("done", "echo", `1`).Body, 1.)
	equal(t, c.answer("done", "echo", `[null,true,1.5]`, "attempt", 2).Body, []any{nil, true, 1.5})
}

func TestUnicodeAnd4MiBPassUnchanged(t *testing.T) {
	c := started(t, "one", 1)
	text := "ä€😀\u2028\"\\\n\x00"
	encoded, err := frame.JSON(text)
	must(t, err)
	equal(t, c.answer("done", "echo", string(encoded)).Body, text)
	large := strings.Repeat("é", 2<<20)
	equal(t, c.answer("done", "echo", `"`+large+`"`).Body == any(large), true)
}

func TestFramesMayArriveInPieces(t *testing.T) {
	c := started(t, "one", 1)
	data, err := frame.Encode(map[string]any{"type": "task", "id": "a1", "attempt": 1, "kind": "echo"}, []byte("[1]"))
	must(t, err)
	for len(data) > 0 {
		size := 7
		if size > len(data) {
			size = len(data)
		}
		_, err := c.to.Write(data[:size])
		must(t, err)
		data = data[size:]
	}
	equal(t, c.ask("done", "next")[0].Body, []any{1.})
}

func TestTheTaskHasWhatTheFrameHas(t *testing.T) {
	c := started(t, "one", 1)
	headers := map[string]any{"tenant": "acme", "n": 1., "b": true}
	found := c.answer("done", "describe", `"x"`, "attempt", 3, "lane", "bulk", "group", "g", "key", "k",
		"headers", headers, "traceparent", "00-0a-0b-01", "tracestate", "a=b",
		"enqueued_at", "2026-11-29T10:00:00.123456789Z").Body.(map[string]any)
	deadline, err := time.Parse(time.RFC3339Nano, found["Deadline"].(string))
	must(t, err)
	if left := time.Until(deadline); left < 590*time.Second || left > 600*time.Second {
		t.Fatalf("the deadline is in %s", left)
	}
	delete(found, "Deadline")
	equal(t, found, map[string]any{
		"ID": "a1", "Kind": "describe", "Attempt": 3., "Lane": "bulk", "Group": "g", "Key": "k", "Headers": headers,
		"Traceparent": "00-0a-0b-01", "Tracestate": "a=b", "Payload": `"x"`, "Cancelled": false,
		"EnqueuedAt": "2026-11-29T10:00:00.123456789Z",
	})
}

func TestPayloads(t *testing.T) {
	c := started(t, "one", 1)
	equal(t, c.answer("done", "raw", "\x00\xff", "content_type", "application/octet-stream").Body, 2.)
	equal(t, c.answer("done", "typed", `{"width":7}`).Body, 7.)
	for _, payload := range []string{`{`, `NaN`, ``, "\"\xff\"", `{"width":"x"}`} {
		head := c.answer("reject", "typed", payload).Head
		equal(t, head["reason"], "invalid-payload")
		matches(t, head["error"], "^the payload is not ")
	}
}

func TestUnknownTypesAndMembersAreIgnored(t *testing.T) {
	c := started(t, "one", 1)
	c.write(map[string]any{"type": "weather", "id": "a1"}, "body")
	c.write(map[string]any{"kind": "no type"}, "")
	equal(t, c.answer("done", "echo", `1`, "unknown", map[string]any{"a": 1}, "enqueued_at", "today").Body, 1.)
	matches(t, c.answer("retry", "missing", `1`).Head["error"], "no handler for the kind missing")
}

func TestEveryOutcome(t *testing.T) {
	c := started(t, "one", 1)
	for _, test := range []struct {
		outcome, payload string
		head             map[string]any
	}{
		{"reject", "reject", map[string]any{"error": "outside: no", "reason": "rejected"}},
		{"reject", "invalid", map[string]any{"error": "width is -1", "reason": "invalid-payload"}},
		{"retry", "later", map[string]any{"error": "later"}},
		{"retry", "retry-after", map[string]any{"error": "the server is down", "after_ms": 1500.}},
		{"snooze", "snooze", map[string]any{"after_ms": 30_001.}},
		{"retry", "goexit", map[string]any{"error": "the handler ended its goroutine"}},
	} {
		equal(t, c.answer(test.outcome, "fail", `"`+test.payload+`"`).Head, test.head)
	}
	if long := c.answer("retry", "fail", `"long"`).Head["error"].(string); len(long) > maxText {
		t.Fatalf("an error of %d bytes", len(long))
	}
}

func TestAPanicIsARetryWithItsFrame(t *testing.T) {
	c := started(t, "one", 1)
	head := c.answer("retry", "fail", `"panic"`).Head
	matches(t, head["error"], `^panic: assignment to entry in nil map \(child_test.go:\d+ in go.testHandlers.func\d+\)$`)
	c.to.Close()
	c.ends()
	matches(t, c.stderr.String(), `(?s)^panic: assignment.*goroutine \d+ `)
}

func TestOutputs(t *testing.T) {
	c := started(t, "one", 1)
	for payload, text := range map[string]string{
		"bytes":    `^the output is not JSON: it is \[\]byte`,
		"channel":  `^the output is not JSON: json: unsupported type: chan int$`,
		"nan":      `^the output is not JSON: json: unsupported value: NaN$`,
		"infinity": `^the output is not JSON: json: unsupported value: \+Inf$`,
		"large":    `^the output has 9437186 bytes; the limit is 8388608$`,
	} {
		head := c.answer("reject", "output", `"`+payload+`"`).Head
		equal(t, head["reason"], "rejected")
		matches(t, head["error"], text)
	}
	equal(t, c.answer("done", "output", `"nil"`).Body, nil)
	equal(t, c.answer("done", "output", `"html"`).Body, "<&>")
}

func TestFollowUpsComeBeforeTheAnswer(t *testing.T) {
	c := started(t, "one", 1)
	c.task("follow_up", "null")
	found := c.ask("follow_up", "follow_up", "reject", "next")
	equal(t, found[0].Head, map[string]any{"type": "follow_up", "id": "a1", "attempt": 1., "kind": "next.one"})
	equal(t, found[0].Body, map[string]any{"name": "größe"})
	equal(t, found[1].Head, map[string]any{
		"type": "follow_up", "id": "a1", "attempt": 1., "kind": "next.two", "task_id": "t2", "delay_ms": 1500.,
		"key": "k", "group": "g", "timeout_ms": 60_000., "headers": map[string]any{"tenant": "acme", "n": 1., "b": true},
	})
	matches(t, found[2].Head["error"], "^the payload of the follow-up next.three is not JSON: ")
}

func TestProgressIsBoundedAndNotSentMoreOftenThanNeeded(t *testing.T) {
	c := started(t, "one", 1)
	c.task("progress", "null")
	found := c.ask("progress", "progress", "done", "next")
	equal(t, found[0].Head, map[string]any{"type": "progress", "id": "a1", "attempt": 1., "done": 0.})
	equal(t, found[1].Head["done"], 1.)
}

func TestLogLinesAreFrames(t *testing.T) {
	c := started(t, "one", 1)
	c.task("log", "null")
	equal(t, c.ask("log", "done", "next")[0].Head, map[string]any{
		"type": "log", "level": "warn", "message": "2\nlines", "id": "a1", "attempt": 1.,
	})
}

func TestAfterTheAnswerNothingIsSentForATask(t *testing.T) {
	c := started(t, "one", 1)
	c.answer("done", "late", "null")
	matches(t, c.answer("retry", "late", "null").Head["error"], "the task a1 has ended")
}

func TestPrintAndGarbageGoToStdout(t *testing.T) {
	c := started(t, "one", 1)
	equal(t, c.answer("done", "noise", "null").Body, "quiet")
	c.to.Close()
	c.ends()
	equal(t, c.stdout.String(), "printed\n\x00\xff\x00\x00{from a shell\n")
}

func TestProgramsThatAHandlerStartsDoNotGetTheDescriptors(t *testing.T) {
	equal(t, started(t, "one", 1).answer("done", "descriptors", "null").Body, "")
}

func TestCancelReachesTheContextOfItsTaskOnly(t *testing.T) {
	c := started(t, "three", 3)
	c.task("wait", "null", "id", "one")
	c.task("wait", `"finish"`, "id", "two")
	c.ask("progress", "progress")
	c.cancel("two", "stopped")
	done := c.ask("done", "next")[0]
	equal(t, []any{done.Head["id"], done.Body}, []any{"two", "stopped"})
	c.cancel("two", "stopped")
	c.cancel("one", "deadline")
	retry := c.ask("retry", "next")[0].Head
	equal(t, []any{retry["id"], retry["error"]}, []any{"one", "cancelled: deadline"})
}

func TestTheContextEndsAtTheDeadline(t *testing.T) {
	c := started(t, "one", 1)
	c.task("wait", "null", "deadline_ms", 20)
	matches(t, c.ask("progress", "retry", "next")[1].Head["error"], "context deadline exceeded")
}

func TestACancelAfterTheAnswerMeansNothing(t *testing.T) {
	c := started(t, "one", 1)
	c.answer("done", "echo", "1")
	c.cancel("a1", "deadline")
	equal(t, c.answer("done", "describe", "1").Body.(map[string]any)["Cancelled"], false)
}

func TestTasksRunAtTheSameTime(t *testing.T) {
	c := started(t, "three", 3)
	c.task("meet", "1", "id", "one")
	c.task("meet", "2", "id", "two")
	answers := map[any]any{}
	for _, found := range c.ask("done", "next", "done", "next") {
		if found.Head["type"] == "done" {
			answers[found.Head["id"]] = found.Body
		}
	}
	equal(t, answers, map[any]any{"one": 1., "two": 2.})
}

func TestTheEndOfThePipeAndByeEndTheChild(t *testing.T) {
	c := started(t, "three", 3)
	c.to.Close()
	c.ends()
	c = started(t, "three", 3)
	c.write(map[string]any{"type": "bye"}, "")
	c.ends()
}

func TestARunningTaskFinishesAfterByeAndCanBeCancelled(t *testing.T) {
	c := started(t, "one", 1)
	c.task("wait", `"finish"`)
	c.ask("progress")
	c.write(map[string]any{"type": "bye"}, "")
	c.cancel("a1", "shutdown")
	equal(t, c.ask("done")[0].Body, "shutdown")
	c.ends()
}

func TestARunningTaskFinishesAfterTheEndOfThePipe(t *testing.T) {
	c := started(t, "one", 1)
	c.task("wait", `"finish"`, "deadline_ms", 100)
	c.ask("progress")
	c.to.Close()
	c.ask("done")
	c.ends()
}

func TestAWorkerThatIsGoneEndsTheChild(t *testing.T) {
	c := started(t, "one", 1)
	c.from.Close()
	c.task("echo", "1")
	must(t, c.command.Wait())
	equal(t, c.stderr.String(), "garenne: the worker is gone\n")
}

func TestAnInterruptIsIgnoredAndSIGTERMEndsTheChild(t *testing.T) {
	c := started(t, "one", 1)
	must(t, c.command.Process.Signal(os.Interrupt))
	equal(t, c.answer("done", "echo", "1").Body, 1.)
	must(t, c.command.Process.Signal(syscall.SIGTERM))
	matches(t, c.command.Wait().Error(), "terminated")
}

func TestAHeadThatIsNoJSONIsAnError(t *testing.T) {
	c := started(t, "one", 1)
	_, err := c.to.Write([]byte("\x00\x00\x00\x01\x00\x00\x00\x00x"))
	must(t, err)
	matches(t, c.command.Wait().Error(), "exit status 1")
	matches(t, c.stderr.String(), "^a head that is not JSON: ")
}

func TestAHandlerOfAnyKind(t *testing.T) {
	c := start(t, "any")
	hello := c.ask(append([]string{"hello"}, strings.Fields(strings.Repeat("next ", 10))...)...)[0].Head
	equal(t, hello, map[string]any{"type": "hello", "protocol": 1., "sdk": "garenne-go/0.1.0", "concurrency": 10.})
	equal(t, c.answer("done", "some.kind", "1").Body, "some.kind")
}

func TestAnotherVersionOfTheProtocolIsRefused(t *testing.T) {
	c := start(t, "any", "GARENNE_HANDLER_PROTOCOL=2")
	matches(t, c.command.Wait().Error(), "exit status 1")
	equal(t, c.stderr.String(), "the worker has version 2 of the protocol; this SDK needs 1\n")
}
