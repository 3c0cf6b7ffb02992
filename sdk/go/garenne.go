// Package garenne runs the tasks of a Garenne worker, and builds messages that publish tasks.
//
//	func resize(ctx context.Context, task *garenne.Task, in Image) (Resized, error) {
//		if in.Width < 1 {
//			return Resized{}, garenne.Invalid(errors.New("width is below 1"))
//		}
//		…
//	}
//
//	func main() {
//		err := garenne.Run(garenne.Handlers{"image.resize": garenne.Func(resize)}, garenne.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
package garenne

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/garenne/garenne/sdk/go/internal/frame"
)

// Version is that of the SDK.
const Version = "0.1.0"

// Handler runs a task. The context is cancelled when the worker cancels the task, and has the task's deadline. The
// result is anything that encoding/json encodes.
type Handler func(ctx context.Context, task *Task) (any, error)

// AnyKind is the kind of a handler that runs whatever kind the worker gives. It must be the only one of its program.
const AnyKind = "*"

// Handlers are the handlers of a program by kind.
type Handlers map[string]Handler

// Func makes a Handler of a function with types. A payload that In cannot be decoded from is a dead letter. If In is
// []byte, the function gets the payload as it is.
func Func[In, Out any](function func(ctx context.Context, task *Task, in In) (Out, error)) Handler {
	return func(ctx context.Context, task *Task) (any, error) {
		var in In
		if raw, ok := any(&in).(*[]byte); ok {
			*raw = task.Payload
		} else if err := task.Decode(&in); err != nil {
			return nil, err
		}
		return function(ctx, task, in)
	}
}

// Task is a run of a task. Its methods may be called by several goroutines.
type Task struct {
	// ID is the same in every attempt.
	ID   string
	Kind string
	// Attempt counts from 1.
	Attempt int
	// Lane, Group and Key are empty if the task has none.
	Lane, Group, Key string
	// Headers are the message's own headers: texts, numbers (float64) and booleans.
	Headers map[string]any
	// ContentType is that of Payload.
	ContentType string
	Payload     []byte
	// EnqueuedAt is when the task was published. It is zero if the publisher did not say so.
	EnqueuedAt time.Time
	// Traceparent and Tracestate are the W3C trace context.
	Traceparent, Tracestate string

	run *run
}

// Decode decodes the payload from JSON. Its errors make the task a dead letter.
func (t *Task) Decode(into any) error {
	if !utf8.Valid(t.Payload) {
		return Invalid(errors.New("the payload is not UTF-8"))
	}
	if err := json.Unmarshal(t.Payload, into); err != nil {
		return Invalid(fmt.Errorf("the payload is not as expected: %w", err))
	}
	return nil
}

// CancelReason is "deadline", "stopped" or "shutdown", and empty if the worker did not cancel the task.
func (t *Task) CancelReason() string { return t.run.cancelReason() }

// Progress reports how much of the work is done, from 0 to 1. At most ten reports a second are sent, and always the one
// of 1.
func (t *Task) Progress(done float64) { t.run.progress(done) }

// Log levels of the worker.
const (
	LevelError = "error"
	LevelWarn  = "warn"
	LevelInfo  = "info"
	LevelDebug = "debug"
)

// Logf writes a line to the worker's log that names the task.
func (t *Task) Logf(level, format string, arguments ...any) {
	t.run.log(level, fmt.Sprintf(format, arguments...))
}

// FollowUp is a task that is published once the one that asked for it has succeeded. Only Kind is required.
type FollowUp struct {
	Kind           string
	Payload        any
	ID             string
	Key, Group     string
	Delay, Timeout time.Duration
	// Headers are texts, numbers and booleans.
	Headers map[string]any
}

// FollowUp asks for a task. Return its error: it makes the task a dead letter, because a repetition has the same result.
func (t *Task) FollowUp(followUp FollowUp) error { return t.run.followUp(followUp) }

// outcome is an error that says what becomes of the task.
type outcome struct {
	kind   string
	reason string
	after  *time.Duration
	cause  error
}

func (o *outcome) Error() string { return o.cause.Error() }
func (o *outcome) Unwrap() error { return o.cause }

// Reject makes the task a dead letter.
func Reject(err error) error { return &outcome{kind: "reject", reason: "rejected", cause: err} }

// Invalid makes the task a dead letter whose payload is to blame.
func Invalid(err error) error { return &outcome{kind: "reject", reason: "invalid-payload", cause: err} }

// RetryAfter spends an attempt, and retries the task not before this time.
func RetryAfter(err error, after time.Duration) error {
	return &outcome{kind: "retry", after: &after, cause: err}
}

// Snooze runs the task again after this time, and spends no attempt.
func Snooze(after time.Duration) error {
	return &outcome{kind: "snooze", after: &after, cause: errors.New("snooze")}
}

// milliseconds rounds up, so that a short time does not become none.
func milliseconds(duration time.Duration) int64 {
	if duration < 0 {
		return 0
	}
	return int64((duration + time.Millisecond - 1) / time.Millisecond)
}

func encodeBody(value any, what string, maxBody int) ([]byte, error) {
	if _, ok := value.([]byte); ok {
		return nil, Reject(fmt.Errorf("%s is not JSON: it is []byte; use a string or a json.RawMessage", what))
	}
	body, err := frame.JSON(value)
	if err != nil {
		return nil, Reject(fmt.Errorf("%s is not JSON: %w", what, err))
	}
	if maxBody > 0 && len(body) > maxBody {
		return nil, Reject(fmt.Errorf("%s has %d bytes; the limit is %d", what, len(body), maxBody))
	}
	if bytes.Equal(body, []byte("null")) {
		return nil, nil
	}
	return body, nil
}
