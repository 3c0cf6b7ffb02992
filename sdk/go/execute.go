package garenne

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/garenne/garenne/sdk/go/internal/frame"
)

const (
	// A loop may report after every item. The worker shows the progress a few times a second.
	progressInterval = 100 * time.Millisecond
	// The worker keeps 1,000 bytes of an error. A head has at most 65,536 bytes, and JSON may need six for one.
	maxText = 8000
)

// run is the part of a Task that speaks with the worker.
type run struct {
	key    runKey
	server *server
	cancel context.CancelFunc

	// The fields below are guarded by the mutex.
	mutex    sync.Mutex
	reason   string
	answered bool
	reported time.Time
}

func (r *run) head(kind string) map[string]any {
	return map[string]any{"type": kind, "id": r.key.id, "attempt": r.key.attempt}
}

func (r *run) cancelBy(reason string) {
	r.mutex.Lock()
	r.reason = reason
	r.mutex.Unlock()
	r.cancel()
}

func (r *run) cancelReason() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.reason
}

// close is called before the answer is written.
func (r *run) close() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.answered = true
}

// report writes a frame before the answer, unless allowed forbids it. It reports whether it did.
func (r *run) report(head map[string]any, body []byte, allowed func() bool) (bool, error) {
	data, err := frame.Encode(head, body)
	if err != nil {
		return false, Reject(fmt.Errorf("the %s cannot be sent: %w", head["type"], err))
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.answered || !allowed() {
		return false, nil
	}
	return true, r.server.write(data)
}

func always() bool { return true }

func (r *run) progress(done float64) {
	done = math.Min(1, math.Max(0, done))
	if math.IsNaN(done) {
		return
	}
	head := r.head("progress")
	head["done"] = done
	now := time.Now()
	// An answer would fail in the same way, and ends the program.
	_, _ = r.report(head, nil, func() bool {
		if done < 1 && now.Sub(r.reported) < progressInterval {
			return false
		}
		r.reported = now
		return true
	})
}

func (r *run) log(level, message string) {
	head := r.head("log")
	head["level"], head["message"] = level, shorten(message)
	_, _ = r.report(head, nil, always)
}

func (r *run) followUp(followUp FollowUp) error {
	body, err := encodeBody(followUp.Payload, "the payload of the follow-up "+followUp.Kind, r.server.maxBody)
	if err != nil {
		return err
	}
	if body == nil {
		body = []byte("null")
	}
	head := r.head("follow_up")
	head["kind"] = followUp.Kind
	texts := map[string]string{"task_id": followUp.ID, "key": followUp.Key, "group": followUp.Group}
	for name, value := range texts {
		if value != "" {
			head[name] = value
		}
	}
	times := map[string]time.Duration{"delay_ms": followUp.Delay, "timeout_ms": followUp.Timeout}
	for name, value := range times {
		if value != 0 {
			head[name] = milliseconds(value)
		}
	}
	if len(followUp.Headers) > 0 {
		head["headers"] = followUp.Headers
	}
	sent, err := r.report(head, body, always)
	if err == nil && !sent {
		err = fmt.Errorf("the task %s has ended; it can have no further follow-ups", r.key.id)
	}
	return err
}

// execute runs a handler, and answers the task.
func (r *run) execute(ctx context.Context, handler Handler, task *Task) {
	defer r.cancel()
	var output any
	err := errors.New("the handler ended its goroutine")
	// Deferred, because a handler may end its goroutine.
	defer func() { r.server.answer(r, r.answer(output, err)) }()
	defer func() {
		if value := recover(); value != nil {
			fmt.Fprintf(os.Stderr, "panic: %v\n%s", value, debug.Stack())
			err = fmt.Errorf("panic: %v%s", value, panicked())
		}
	}()
	if handler == nil {
		err = fmt.Errorf("the program has no handler for the kind %s", task.Kind)
		return
	}
	output, err = handler(ctx, task)
}

// answer returns the frame of the answer.
func (r *run) answer(output any, err error) []byte {
	head := r.head("done")
	var body []byte
	if err == nil {
		body, err = encodeBody(output, "the output", r.server.maxBody)
	}
	if err != nil {
		r.failed(head, err)
	}
	data, err := frame.Encode(head, body)
	if err != nil { // The worker's id is bounded, and so is the error.
		panic(err)
	}
	return data
}

// failed makes the answer of an error.
func (r *run) failed(head map[string]any, err error) {
	head["type"], head["error"] = "retry", shorten(err.Error())
	var found *outcome
	if errors.As(err, &found) {
		head["type"] = found.kind
		if found.reason != "" {
			head["reason"] = found.reason
		}
		if found.after != nil {
			head["after_ms"] = milliseconds(*found.after)
		}
		if found.kind == "snooze" {
			delete(head, "error")
		}
	} else if reason := r.cancelReason(); reason != "" && isCancellation(err) {
		head["error"] = "cancelled: " + reason
	}
}

func isCancellation(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// panicked is the frame of the function that panicked.
func panicked() string {
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(0, callers)])
	inPanic := false
	for {
		frame, more := frames.Next()
		isRuntime := strings.HasPrefix(frame.Function, "runtime.")
		if inPanic && !isRuntime {
			return fmt.Sprintf(" (%s:%d in %s)", path.Base(frame.File), frame.Line, path.Base(frame.Function))
		}
		inPanic = inPanic || frame.Function == "runtime.gopanic"
		if !more {
			return ""
		}
	}
}

// shorten takes the middle out of a long text.
func shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	half := maxText/2 - 3
	return strings.ToValidUTF8(text[:half], "") + " … " + strings.ToValidUTF8(text[len(text)-half:], "")
}
