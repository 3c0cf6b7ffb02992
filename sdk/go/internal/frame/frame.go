// Package frame reads and writes the frames between a worker and its children, as docs/reference/handlers.md specifies
// them.
package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// MaxHead is the largest head in bytes.
const MaxHead = 65536

// Encode returns a frame. The head is any value that encoding/json encodes as an object.
func Encode(head any, body []byte) ([]byte, error) {
	text, err := JSON(head)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxHead {
		return nil, fmt.Errorf("a head has %d bytes; the limit is %d", len(text), MaxHead)
	}
	data := make([]byte, 8, 8+len(text)+len(body))
	binary.BigEndian.PutUint32(data, uint32(len(text)))
	binary.BigEndian.PutUint32(data[4:], uint32(len(body)))
	return append(append(data, text...), body...), nil
}

// Read reads a frame, and its head into the value that head points to. It returns io.EOF at the end of the input, and
// io.ErrUnexpectedEOF within a frame.
func Read(in io.Reader, head any) ([]byte, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(in, sizes[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(sizes[:])
	if size > MaxHead {
		return nil, fmt.Errorf("a head of %d bytes; the limit is %d", size, MaxHead)
	}
	text := make([]byte, size)
	body := make([]byte, binary.BigEndian.Uint32(sizes[4:]))
	for _, part := range [][]byte{text, body} {
		if _, err := io.ReadFull(in, part); err == io.EOF && len(part) > 0 {
			return nil, io.ErrUnexpectedEOF
		} else if err != nil {
			return nil, err
		}
	}
	if err := json.Unmarshal(text, head); err != nil {
		return nil, fmt.Errorf("a head that is not JSON: %w", err)
	}
	return body, nil
}

// JSON encodes a value without the escapes that only HTML needs.
func JSON(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}
