package garenne

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/garenne/garenne/sdk/go/internal/frame"
)

// TestMain makes the test's binary a child, if a test started it as one.
func TestMain(m *testing.M) {
	switch os.Getenv("GARENNE_TEST_CHILD") {
	case "":
		os.Exit(m.Run())
	case "any":
		handler := func(_ context.Context, task *Task) (any, error) { return task.Kind, nil }
		exit(Run(Handlers{AnyKind: handler}, Options{}))
	case "one":
		exit(Run(testHandlers(), Options{Concurrency: 1}))
	case "recorded":
		exit(Run(resizeHandlers(), Options{Concurrency: 1}))
	case "three":
		exit(Run(testHandlers(), Options{Concurrency: 3}))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

type description struct {
	ID, Kind, Lane, Group, Key, Traceparent, Tracestate, Payload string
	Attempt                                                      int
	Headers                                                      map[string]any
	EnqueuedAt, Deadline                                         time.Time
	Cancelled                                                    bool
}

func testHandlers() Handlers {
	met := make(chan struct{}, 1)
	meeting := make(chan struct{})
	var kept *Task
	return Handlers{
		"echo": Func(func(_ context.Context, _ *Task, in any) (any, error) { return in, nil }),
		"raw":  Func(func(_ context.Context, _ *Task, in []byte) (int, error) { return len(in), nil }),
		"typed": Func(func(_ context.Context, _ *Task, in struct{ Width int }) (int, error) {
			return in.Width, nil
		}),
		"describe": func(ctx context.Context, task *Task) (any, error) {
			deadline, _ := ctx.Deadline()
			return description{
				ID: task.ID, Kind: task.Kind, Lane: task.Lane, Group: task.Group, Key: task.Key,
				Traceparent: task.Traceparent, Tracestate: task.Tracestate, Payload: string(task.Payload),
				Attempt: task.Attempt, Headers: task.Headers, EnqueuedAt: task.EnqueuedAt, Deadline: deadline,
				Cancelled: ctx.Err() != nil,
			}, nil
		},
		"fail": Func(func(_ context.Context, _ *Task, name string) (any, error) {
			switch name {
			case "reject":
				return nil, fmt.Errorf("outside: %w", Reject(errors.New("no")))
			case "invalid":
				return nil, Invalid(errors.New("width is -1"))
			case "retry-after":
				return nil, RetryAfter(errors.New("the server is down"), 1500*time.Millisecond)
			case "snooze":
				return nil, Snooze(30*time.Second + time.Nanosecond)
			case "long":
				return nil, errors.New(strings.Repeat("\x00", 100_000))
			case "panic":
				var none map[string]int
				none["x"] = 1
			case "goexit":
				runtime.Goexit()
			}
			return nil, errors.New(name)
		}),
		"output": Func(func(_ context.Context, _ *Task, name string) (any, error) {
			return map[string]any{
				"bytes": []byte("a"), "channel": make(chan int), "nan": []float64{math.NaN()}, "infinity": math.Inf(1),
				"large": strings.Repeat("x", 9<<20), "nil": nil, "html": "<&>",
			}[name], nil
		}),
		"noise": func(context.Context, *Task) (any, error) {
			fmt.Println("printed")
			_, err := os.Stdout.Write([]byte{0, 255, 0, 0, '{'})
			command := exec.Command("sh", "-c", "echo from a shell")
			command.Stdout = os.Stdout
			return "quiet", first(err, command.Run())
		},
		"descriptors": func(context.Context, *Task) (any, error) {
			script := "for fd in 3 4; do [ -p /dev/fd/$fd ] && echo $fd; done; true"
			output, err := exec.Command("sh", "-c", script).Output()
			return string(output), err
		},
		"wait": func(ctx context.Context, task *Task) (any, error) {
			task.Progress(0.5)
			<-ctx.Done()
			if string(task.Payload) == `"finish"` {
				return task.CancelReason(), nil
			}
			return nil, fmt.Errorf("waiting: %w", ctx.Err())
		},
		"meet": Func(func(_ context.Context, _ *Task, in any) (any, error) {
			select {
			case met <- struct{}{}:
				<-meeting
			default:
				close(meeting)
			}
			return in, nil
		}),
		"progress": func(_ context.Context, task *Task) (any, error) {
			for _, done := range []float64{-1, 0.25, math.NaN(), 0.75, 2} {
				task.Progress(done)
			}
			return nil, nil
		},
		"follow_up": func(_ context.Context, task *Task) (any, error) {
			for _, followUp := range []FollowUp{
				{Kind: "next.one", Payload: map[string]string{"name": "größe"}},
				{
					Kind: "next.two", ID: "t2", Key: "k", Group: "g", Delay: 1500 * time.Millisecond,
					Timeout: time.Minute, Headers: map[string]any{"tenant": "acme", "n": 1, "b": true},
				},
				{Kind: "next.three", Payload: math.NaN()},
			} {
				if err := task.FollowUp(followUp); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
		"log": func(_ context.Context, task *Task) (any, error) {
			task.Logf(LevelWarn, "%d\nlines", 2)
			return nil, nil
		},
		"late": func(_ context.Context, task *Task) (any, error) {
			if kept == nil {
				kept = task
				return nil, nil
			}
			kept.Progress(1)
			return nil, kept.FollowUp(FollowUp{Kind: "too.late"})
		},
	}
}

// child is a process that runs tasks, and the worker's ends of its pipes.
type child struct {
	*testing.T
	command *exec.Cmd
	to      *os.File
	from    *os.File
	stdout  bytes.Buffer
	stderr  bytes.Buffer
}

// message is a frame with its body.
type message struct {
	Head map[string]any
	Body any
}

func start(t *testing.T, program string, environment ...string) *child {
	t.Helper()
	reads, to, err := os.Pipe()
	must(t, err)
	from, writes, err := os.Pipe()
	must(t, err)
	c := &child{T: t, command: exec.Command(os.Args[0]), to: to, from: from}
	c.command.ExtraFiles = []*os.File{reads, writes} // descriptors 3 and 4
	c.command.Stdout, c.command.Stderr = &c.stdout, &c.stderr
	c.command.Env = append(os.Environ(), "GARENNE_TEST_CHILD="+program, "GARENNE_HANDLER_PROTOCOL=1",
		"GARENNE_HANDLER_IN=3", "GARENNE_HANDLER_OUT=4", fmt.Sprintf("GARENNE_HANDLER_MAX_BODY=%d", 8<<20))
	c.command.Env = append(c.command.Env, environment...)
	must(t, c.command.Start())
	reads.Close()
	writes.Close()
	t.Cleanup(func() {
		_ = c.command.Process.Kill()
		_ = c.command.Wait()
		to.Close()
		from.Close()
	})
	return c
}

// started reads hello and each next.
func started(t *testing.T, program string, concurrency int) *child {
	t.Helper()
	c := start(t, program)
	types := []string{"hello"}
	for i := 0; i < concurrency; i++ {
		types = append(types, "next")
	}
	c.ask(types...)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *child) write(head map[string]any, body string) {
	c.Helper()
	data, err := frame.Encode(head, []byte(body))
	must(c.T, err)
	_, err = c.to.Write(data)
	must(c.T, err)
}

// task writes a task with the id a1. Pairs of names and values are further members of the head.
func (c *child) task(kind, payload string, members ...any) {
	c.Helper()
	head := map[string]any{
		"type": "task", "id": "a1", "attempt": 1, "kind": kind, "deadline_ms": 600_000,
		"content_type": "application/json", "headers": map[string]any{},
	}
	for i := 0; i < len(members); i += 2 {
		head[members[i].(string)] = members[i+1]
	}
	c.write(head, payload)
}

func (c *child) cancel(id, reason string) {
	c.write(map[string]any{"type": "cancel", "id": id, "attempt": 1, "reason": reason}, "")
}

// read returns the next frame, and nil at the end.
func (c *child) read() *message {
	c.Helper()
	must(c.T, c.from.SetReadDeadline(time.Now().Add(30*time.Second)))
	var found message
	body, err := frame.Read(c.from, &found.Head)
	if err == io.EOF {
		return nil
	}
	if err != nil {
		c.Fatalf("%v; stderr: %s", err, c.stderr.String())
	}
	if len(body) > 0 {
		must(c.T, json.Unmarshal(body, &found.Body))
	}
	return &found
}

// ask reads as many frames. It fails if they have other types.
func (c *child) ask(types ...string) []*message {
	c.Helper()
	var found []*message
	for _, expected := range types {
		next := c.read()
		if next == nil || next.Head["type"] != expected {
			c.Fatalf("got %v after %v; expected %v", next, found, types)
		}
		found = append(found, next)
	}
	return found
}

// answer runs a task that is answered with nothing else.
func (c *child) answer(outcome, kind, payload string, members ...any) *message {
	c.Helper()
	c.task(kind, payload, members...)
	answer := c.ask(outcome, "next")[0]
	if answer.Head["id"] != "a1" || answer.Head["attempt"] == nil {
		c.Fatalf("the answer is for another task: %v", answer.Head)
	}
	for _, name := range []string{"type", "id", "attempt"} {
		delete(answer.Head, name)
	}
	return answer
}

// ends checks that the child writes nothing more and exits with 0.
func (c *child) ends() {
	c.Helper()
	if found := c.read(); found != nil {
		c.Fatalf("got %v; expected the end", found)
	}
	if err := c.command.Wait(); err != nil {
		c.Fatalf("%v: %s", err, c.stderr.String())
	}
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
