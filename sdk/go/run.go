package garenne

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/garenne/garenne/sdk/go/internal/frame"
)

const protocol = 1

// Options are those of Run and Serve.
type Options struct {
	// Concurrency is the number of tasks at a time, up to 1000. Zero is 10.
	Concurrency int
	// MaxBody bounds outputs and payloads of follow-ups in bytes. Run takes it from the worker; zero is no bound.
	MaxBody int
}

// Run runs tasks until the worker ends the program, and returns nil then.
func Run(handlers Handlers, options Options) error {
	signal.Ignore(os.Interrupt) // The worker gets it too, and decides.
	switch version := os.Getenv("GARENNE_HANDLER_PROTOCOL"); version {
	case strconv.Itoa(protocol):
	case "":
		return errors.New("this program is started by a worker; to run a handler without one, use garennetest")
	default:
		return fmt.Errorf("the worker has version %s of the protocol; this SDK needs %d", version, protocol)
	}
	if limit, err := strconv.Atoi(os.Getenv("GARENNE_HANDLER_MAX_BODY")); err == nil {
		options.MaxBody = limit
	}
	in, err := descriptor("GARENNE_HANDLER_IN", 3)
	if err != nil {
		return err
	}
	out, err := descriptor("GARENNE_HANDLER_OUT", 4)
	if err != nil {
		return err
	}
	err = Serve(in, out, handlers, options)
	if errors.Is(err, syscall.EPIPE) {
		fmt.Fprintln(os.Stderr, "garenne: the worker is gone")
		return nil
	}
	return err
}

func descriptor(variable string, number int) (*os.File, error) {
	if text := os.Getenv(variable); text != "" {
		given, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", variable, err)
		}
		number = given
	}
	// Programs that a handler starts must not keep the pipe open.
	syscall.CloseOnExec(number)
	// Go then polls the pipe. Otherwise, a thread would wait in each read, and be woken for each task.
	if err := syscall.SetNonblock(number, true); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", number, err)
	}
	return os.NewFile(uintptr(number), variable), nil
}

// Serve speaks the protocol over a reader and a writer. Programs use Run. It returns nil when the worker has said bye
// or in has ended, and every task is answered.
func Serve(in io.Reader, out io.Writer, handlers Handlers, options Options) error {
	if options.Concurrency == 0 {
		options.Concurrency = 10
	}
	if options.Concurrency < 1 || options.Concurrency > 1000 {
		return fmt.Errorf("Concurrency is %d; expected 1 to 1000", options.Concurrency)
	}
	if len(handlers) == 0 || handlers[AnyKind] != nil && len(handlers) > 1 {
		return errors.New("expected handlers of kinds, or one of AnyKind")
	}
	s := &server{
		out:      out,
		handlers: handlers,
		maxBody:  options.MaxBody,
		running:  make(map[runKey]*run),
		end:      make(chan error, 1),
	}
	hello, err := frame.Encode(helloOf(handlers, options.Concurrency), nil)
	if err != nil {
		return err
	}
	for i := 0; i < options.Concurrency; i++ {
		hello = append(hello, next...)
	}
	if err := s.write(hello); err != nil {
		return err
	}
	go func() {
		if err := s.read(bufio.NewReaderSize(in, 65536)); err != nil {
			s.finish(err)
		}
	}()
	return <-s.end
}

func helloOf(handlers Handlers, concurrency int) map[string]any {
	hello := map[string]any{
		"type": "hello", "protocol": protocol, "sdk": "garenne-go/" + Version, "concurrency": concurrency,
	}
	if handlers[AnyKind] == nil {
		kinds := make([]string, 0, len(handlers))
		for kind := range handlers {
			kinds = append(kinds, kind)
		}
		sort.Strings(kinds)
		hello["kinds"] = kinds
	}
	return hello
}

var next = func() []byte {
	data, err := frame.Encode(map[string]string{"type": "next"}, nil)
	if err != nil {
		panic(err)
	}
	return data
}()

type runKey struct {
	id      string
	attempt int
}

type server struct {
	handlers Handlers
	maxBody  int
	end      chan error

	writing sync.Mutex
	out     io.Writer

	// The fields below are guarded by the mutex.
	mutex   sync.Mutex
	running map[runKey]*run
	ending  bool
}

// write writes whole frames.
func (s *server) write(data []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.out.Write(data)
	return err
}

// finish makes Serve return.
func (s *server) finish(err error) {
	select {
	case s.end <- err:
	default: // It returns already.
	}
}

// received has the members of all frames from the worker.
type received struct {
	Type        string         `json:"type"`
	ID          string         `json:"id"`
	Attempt     int            `json:"attempt"`
	Kind        string         `json:"kind"`
	Lane        string         `json:"lane"`
	DeadlineMS  *int64         `json:"deadline_ms"`
	ContentType string         `json:"content_type"`
	Group       string         `json:"group"`
	Key         string         `json:"key"`
	EnqueuedAt  string         `json:"enqueued_at"`
	Traceparent string         `json:"traceparent"`
	Tracestate  string         `json:"tracestate"`
	Headers     map[string]any `json:"headers"`
	Reason      string         `json:"reason"`
}

func (s *server) read(in io.Reader) error {
	for {
		var head received
		body, err := frame.Read(in, &head)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			s.endWhenIdle()
			return nil
		}
		if err != nil {
			return err
		}
		switch head.Type {
		case "task":
			s.start(&head, body)
		case "cancel":
			s.mutex.Lock()
			run := s.running[runKey{head.ID, head.Attempt}]
			s.mutex.Unlock()
			if run != nil { // Otherwise it was answered already.
				run.cancelBy(head.Reason)
			}
		case "bye":
			s.endWhenIdle()
		}
	}
}

func (s *server) endWhenIdle() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.ending = true
	if len(s.running) == 0 {
		s.finish(nil)
	}
}

func (s *server) start(head *received, body []byte) {
	task := &Task{
		ID: head.ID, Kind: head.Kind, Attempt: head.Attempt, Lane: head.Lane, Group: head.Group, Key: head.Key,
		Headers: head.Headers, ContentType: head.ContentType, Payload: body,
		Traceparent: head.Traceparent, Tracestate: head.Tracestate,
	}
	task.EnqueuedAt, _ = time.Parse(time.RFC3339Nano, head.EnqueuedAt)
	run := &run{key: runKey{head.ID, head.Attempt}, server: s}
	task.run = run
	var ctx context.Context
	if head.DeadlineMS == nil || *head.DeadlineMS <= 0 { // The worker cancels the task if it is due.
		ctx, run.cancel = context.WithCancel(context.Background())
	} else {
		ctx, run.cancel = context.WithTimeout(context.Background(), time.Duration(*head.DeadlineMS)*time.Millisecond)
	}
	s.mutex.Lock()
	s.running[run.key] = run
	s.mutex.Unlock()
	handler := s.handlers[head.Kind]
	if handler == nil {
		handler = s.handlers[AnyKind]
	}
	go run.execute(ctx, handler, task)
}

// answer writes an answer, and asks for the next task.
func (s *server) answer(run *run, answer []byte) {
	run.close()
	s.mutex.Lock()
	delete(s.running, run.key)
	if !s.ending {
		answer = append(answer, next...)
	}
	s.mutex.Unlock()
	err := s.write(answer)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err != nil || s.ending && len(s.running) == 0 {
		s.finish(err)
	}
}
