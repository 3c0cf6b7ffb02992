package garennetest_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	garenne "github.com/garenne/garenne/sdk/go"
	"github.com/garenne/garenne/sdk/go/garennetest"
)

type image struct{ Width int }

func resize(ctx context.Context, task *garenne.Task, in image) (map[string]any, error) {
	if in.Width < 1 {
		return nil, garenne.Invalid(errors.New("width is below 1"))
	}
	task.Progress(0.5)
	task.Logf(garenne.LevelInfo, "width %d", in.Width)
	err := task.FollowUp(garenne.FollowUp{Kind: "image.publish", Payload: in, Delay: time.Second})
	return map[string]any{"attempt": task.Attempt, "tenant": task.Headers["tenant"]}, err
}

func TestDone(t *testing.T) {
	options := garennetest.Options{Attempt: 2, Headers: map[string]any{"tenant": "acme"}}
	found := garennetest.Run(garenne.Func(resize), image{Width: 7}, options)
	expected := garennetest.Result{
		Outcome:  "done",
		Output:   []byte(`{"attempt":2,"tenant":"acme"}`),
		Progress: []float64{0.5},
		Logs:     []garennetest.Log{{Level: "info", Message: "width 7"}},
		FollowUps: []garennetest.FollowUp{{
			Kind: "image.publish", Payload: []byte(`{"Width":7}`), Options: map[string]any{"delay_ms": 1000.},
		}},
	}
	if !reflect.DeepEqual(found, expected) {
		t.Fatalf("got %+v; expected %+v", found, expected)
	}
}

func TestOutcomes(t *testing.T) {
	found := garennetest.Run(garenne.Func(resize), image{}, garennetest.Options{})
	if found.Outcome != "reject" || found.Reason != "invalid-payload" || found.Error != "width is below 1" {
		t.Fatalf("got %+v", found)
	}
	snooze := func(context.Context, *garenne.Task) (any, error) { return nil, garenne.Snooze(time.Minute) }
	if found := garennetest.Run(snooze, nil, garennetest.Options{}); found.Outcome != "snooze" || found.After != time.Minute {
		t.Fatalf("got %+v", found)
	}
	raw := garenne.Func(func(_ context.Context, _ *garenne.Task, in []byte) (int, error) { return len(in), nil })
	if found := garennetest.Run(raw, []byte{0, 255}, garennetest.Options{}); string(found.Output) != "2" {
		t.Fatalf("got %+v", found)
	}
}

func TestCancel(t *testing.T) {
	wait := func(ctx context.Context, _ *garenne.Task) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
	found := garennetest.Run(wait, nil, garennetest.Options{Cancel: "stopped"})
	if found.Outcome != "retry" || found.Error != "cancelled: stopped" {
		t.Fatalf("got %+v", found)
	}
}
