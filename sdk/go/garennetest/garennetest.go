// Package garennetest runs a handler without a worker.
//
//	result := garennetest.Run(garenne.Func(resize), Image{Width: 200}, garennetest.Options{})
//	if result.Outcome != "done" { t.Fatal(result.Error) }
package garennetest

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	garenne "github.com/garenne/garenne/sdk/go"
	"github.com/garenne/garenne/sdk/go/internal/frame"
)

// Options are the task's. All are optional.
type Options struct {
	Kind, ID         string
	Attempt          int
	Lane, Group, Key string
	Headers          map[string]any
	// Deadline is ten minutes if it is zero.
	Deadline time.Duration
	// Cancel cancels the task right after it was started: "deadline", "stopped" or "shutdown".
	Cancel string
}

// FollowUp is a task that the handler asked for. Options has the other members of its frame.
type FollowUp struct {
	Kind    string
	Payload json.RawMessage
	Options map[string]any
}

// Log is a line that the handler logged.
type Log struct{ Level, Message string }

// Result is what a worker would have got.
type Result struct {
	// Outcome is "done", "retry", "reject" or "snooze".
	Outcome string
	// Output is that of "done".
	Output json.RawMessage
	// Error is that of "retry" and "reject".
	Error string
	// Reason is that of "reject".
	Reason string
	// After is that of "retry" and "snooze".
	After     time.Duration
	FollowUps []FollowUp
	Progress  []float64
	Logs      []Log
}

// Run runs a handler. The payload passes through JSON; []byte is given to the handler as it is.
// It panics if the payload cannot be encoded.
func Run(handler garenne.Handler, payload any, options Options) Result {
	body, contentType := payload, "application/octet-stream"
	if _, ok := payload.([]byte); !ok {
		encoded, err := frame.JSON(payload)
		if err != nil {
			panic(fmt.Sprintf("garennetest: the payload is not JSON: %v", err))
		}
		body, contentType = encoded, "application/json"
	}
	if options.Kind == "" {
		options.Kind = "test"
	}
	if options.ID == "" {
		options.ID = "test"
	}
	if options.Attempt == 0 {
		options.Attempt = 1
	}
	if options.Deadline == 0 {
		options.Deadline = 10 * time.Minute
	}
	head := map[string]any{
		"type": "task", "id": options.ID, "attempt": options.Attempt, "kind": options.Kind, "lane": options.Lane,
		"group": options.Group, "key": options.Key, "headers": options.Headers, "content_type": contentType,
		"deadline_ms": options.Deadline.Milliseconds(),
	}
	return converse(handler, head, body.([]byte), options.Cancel)
}

// converse speaks with garenne.Serve as a worker does.
func converse(handler garenne.Handler, task map[string]any, body []byte, cancel string) Result {
	fromWorker, toChild := io.Pipe()
	fromChild, toWorker := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := garenne.Serve(fromWorker, toWorker, garenne.Handlers{garenne.AnyKind: handler}, garenne.Options{Concurrency: 1})
		toWorker.CloseWithError(err)
		served <- err
	}()
	write := func(head map[string]any, body []byte) {
		data, err := frame.Encode(head, body)
		if err == nil {
			_, err = toChild.Write(data)
		}
		if err != nil {
			panic(fmt.Sprintf("garennetest: %v", err))
		}
	}
	go func() {
		write(task, body)
		if cancel != "" {
			write(map[string]any{"type": "cancel", "id": task["id"], "attempt": task["attempt"], "reason": cancel}, nil)
		}
		toChild.Close()
	}()
	var result Result
	for {
		var head map[string]any
		body, err := frame.Read(fromChild, &head)
		if err != nil {
			break
		}
		result.add(head, body)
	}
	if err := <-served; err != nil {
		panic(fmt.Sprintf("garennetest: %v", err))
	}
	return result
}

func (r *Result) add(head map[string]any, body []byte) {
	text := func(name string) string { found, _ := head[name].(string); return found }
	switch kind := text("type"); kind {
	case "hello", "next":
	case "progress":
		r.Progress = append(r.Progress, head["done"].(float64))
	case "log":
		r.Logs = append(r.Logs, Log{text("level"), text("message")})
	case "follow_up":
		followUp := FollowUp{Kind: text("kind"), Payload: body, Options: head}
		for _, name := range []string{"type", "id", "attempt", "kind"} {
			delete(head, name)
		}
		r.FollowUps = append(r.FollowUps, followUp)
	default:
		r.Outcome, r.Error, r.Reason = kind, text("error"), text("reason")
		if after, ok := head["after_ms"].(float64); ok {
			r.After = time.Duration(after) * time.Millisecond
		}
		if kind == "done" {
			r.Output = json.RawMessage("null")
			if len(body) > 0 {
				r.Output = body
			}
		}
	}
}
