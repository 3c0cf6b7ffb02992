package garenne

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Message is a task to publish, with the names and types of the fields of amqp091-go's Publishing.
type Message struct {
	Exchange   string
	RoutingKey string

	MessageId     string
	ContentType   string
	DeliveryMode  uint8
	Timestamp     time.Time
	Expiration    string
	ReplyTo       string
	CorrelationId string
	Headers       map[string]any
	Body          []byte
}

// MessageOptions are all optional.
type MessageOptions struct {
	// ID is a random UUID if it is empty. Give the same one when you publish a task again.
	ID         string
	Key, Group string
	// Delay is the earliest start, Timeout the deadline of an attempt, Expires how long the task is worth running.
	Delay, Timeout, Expires time.Duration
	ReplyTo, CorrelationID  string
	// Headers are the message's own headers.
	Headers map[string]any
}

const (
	exchange   = "garenne.tasks"
	persistent = 2
	longest    = 30 * 24 * time.Hour
)

// NewMessage builds the message of a task.
func NewMessage(kind string, payload any, options MessageOptions) (*Message, error) {
	body, err := encodeBody(payload, "the payload", 0)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if body == nil {
		body = []byte("null")
	}
	if options.ID == "" {
		options.ID = newID()
	}
	now := time.Now()
	headers := map[string]any{}
	for name, value := range options.Headers {
		headers[name] = value
	}
	for _, text := range []struct {
		name, value, header string
		longest             int
	}{
		{"kind", kind, "", 255},
		{"ID", options.ID, "", 128},
		{"Key", options.Key, "garenne-key", 255},
		{"Group", options.Group, "garenne-group", 255},
	} {
		if text.value == "" && text.header != "" {
			continue
		}
		if err := check(text.value, text.name, text.longest); err != nil {
			return nil, err
		}
		if text.header != "" {
			headers[text.header] = text.value
		}
	}
	if options.Group != "" {
		headers["garenne-published-at"] = now.UnixMilli()
	}
	for _, duration := range []struct {
		name, header string
		value        time.Duration
	}{{"Delay", "garenne-delay-ms", options.Delay}, {"Timeout", "garenne-timeout-ms", options.Timeout}} {
		if duration.value < 0 || duration.value > longest {
			return nil, fmt.Errorf("%s is %s; expected 0 to 30 days", duration.name, duration.value)
		}
		if duration.value > 0 {
			headers[duration.header] = milliseconds(duration.value)
		}
	}
	message := &Message{
		Exchange: exchange, RoutingKey: kind, MessageId: options.ID, ContentType: "application/json",
		DeliveryMode: persistent, Timestamp: now, ReplyTo: options.ReplyTo, CorrelationId: options.CorrelationID,
		Headers: headers, Body: body,
	}
	if options.Expires > 0 {
		message.Expiration = strconv.FormatInt(milliseconds(options.Expires), 10)
	}
	return message, nil
}

func check(text, name string, longest int) error {
	valid := len(text) >= 1 && len(text) <= longest
	for _, char := range text {
		valid = valid && char >= ' ' && char != 0x7f
	}
	if !valid {
		return fmt.Errorf("%s is %q; expected 1 to %d bytes without control characters", name, text, longest)
	}
	return nil
}

// newID returns a UUID of version 4.
func newID() string {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic(err)
	}
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
