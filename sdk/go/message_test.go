package garenne

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestAMessageNeedsAKindOnly(t *testing.T) {
	message, err := NewMessage("image.resize", nil, MessageOptions{})
	must(t, err)
	matches(t, message.MessageId, "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
	if age := time.Since(message.Timestamp); age < 0 || age > 5*time.Second {
		t.Fatalf("the timestamp is %s ago", age)
	}
	message.MessageId, message.Timestamp = "", time.Time{}
	equal(t, message, &Message{
		Exchange: "garenne.tasks", RoutingKey: "image.resize", ContentType: "application/json", DeliveryMode: 2,
		Headers: map[string]any{}, Body: []byte("null"),
	})
}

func TestAMessageHasTheHeadersOfTheWireFormat(t *testing.T) {
	message, err := NewMessage("image.resize", map[string]string{"name": "<größe>"}, MessageOptions{
		ID: "a1", Key: "k", Group: "g", Delay: 1500 * time.Millisecond, Timeout: time.Minute, Expires: time.Hour,
		ReplyTo: "r", CorrelationID: "c", Headers: map[string]any{"tenant": "acme"},
	})
	must(t, err)
	equal(t, string(message.Body), `{"name":"<größe>"}`)
	published := message.Headers["garenne-published-at"].(int64)
	equal(t, published, message.Timestamp.UnixMilli())
	delete(message.Headers, "garenne-published-at")
	equal(t, message.Headers, map[string]any{
		"tenant": "acme", "garenne-key": "k", "garenne-group": "g", "garenne-delay-ms": int64(1500),
		"garenne-timeout-ms": int64(60_000),
	})
	equal(t, []string{message.MessageId, message.Expiration, message.ReplyTo, message.CorrelationId},
		[]string{"a1", "3600000", "r", "c"})
}

func TestAMessageThatWouldBeADeadLetterIsRefused(t *testing.T) {
	for _, options := range []MessageOptions{
		{ID: strings.Repeat("x", 129)}, {ID: "a\nb"}, {Group: strings.Repeat("é", 128)}, {Key: "\x7f"},
		{Delay: 31 * 24 * time.Hour}, {Timeout: -1},
	} {
		if _, err := NewMessage("k", nil, options); err == nil {
			t.Fatalf("%+v is accepted", options)
		}
	}
	for _, payload := range []any{[]byte("{}"), math.NaN(), make(chan int)} {
		_, err := NewMessage("k", payload, MessageOptions{})
		matches(t, err.Error(), "^the payload is not JSON: ")
	}
	if _, err := NewMessage("", nil, MessageOptions{}); err == nil {
		t.Fatal("an empty kind is accepted")
	}
}
