package garenne

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// resizeHandlers are those of the program of the recorded conversation.
func resizeHandlers() Handlers {
	return Handlers{"image.resize": Func(func(ctx context.Context, task *Task, in struct{ Width int }) (any, error) {
		if in.Width < 0 {
			return nil, Invalid(fmt.Errorf("width is %d", in.Width))
		}
		if in.Width > 1000 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		task.Progress(0.5)
		payload := map[string]string{"name": "small.png"}
		err := task.FollowUp(FollowUp{Kind: "image.publish", Payload: payload, Delay: time.Second})
		return map[string]int{"bytes": 5120}, err
	})}
}

// The SDK speaks as the protocol's page shows it.
func TestTheRecordedConversation(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/handlers.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Recorded conversation\n")
	_, section, _ = strings.Cut(section, "```text\n")
	section, _, _ = strings.Cut(section, "\n```")
	lines := strings.Split(section, "\n")
	if len(lines) < 10 {
		t.Fatalf("the conversation has moved: %q", section)
	}
	c := start(t, "recorded")
	for _, line := range lines {
		decoder := json.NewDecoder(strings.NewReader(line[2:]))
		var head map[string]any
		must(t, decoder.Decode(&head))
		body := strings.TrimSpace(line[2+decoder.InputOffset():])
		if line[0] == '>' {
			c.write(head, body)
			continue
		}
		if head["type"] == "hello" {
			head["sdk"] = "garenne-go/0.1.0"
		}
		if text, _ := head["error"].(string); strings.HasPrefix(text, "cancelled") {
			head["error"] = "cancelled: shutdown"
		}
		found := c.read()
		if found == nil {
			t.Fatalf("the child ended before %s: %s", line, c.stderr.String())
		}
		equal(t, found.Head, head)
		var expected any
		if body != "" {
			must(t, json.Unmarshal([]byte(body), &expected))
		}
		equal(t, found.Body, expected)
	}
	// The last message was bye. The child may have asked for a task before it came.
	if last := c.read(); last != nil {
		equal(t, last.Head["type"], "next")
	}
	c.ends()
}
