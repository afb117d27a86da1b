package policy

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxMessage is the most bytes that a message between the agent and longshore-policy has.
const MaxMessage = 16 << 20

// Kind is the kind of a message.
type Kind byte

// The kinds of messages. The agent sends the first three; the program answers each with one of the
// last kind.
const (
	KindPolicy   Kind = 1 + iota // the policy's text, once, at first
	KindState                    // the policy's state, as JSON
	KindQuestion                 // the name of a request, a zero byte, and the request as JSON
	KindAnswer                   // an Answer as JSON
)

// headLength is the size of a message's kind and length.
const headLength = 5

// Answer is the program's answer to a message.
type Answer struct {
	// Done says that a policy or a state was taken, or that a request is allowed.
	Done bool `json:"done"`
	// Reason says why not.
	Reason string `json:"reason,omitempty"`
	// State is the policy's new state; absent if it did not change.
	State json.RawMessage `json:"state,omitempty"`
	// Lenient says that the policy allows requests that its rules refuse.
	Lenient bool `json:"lenient,omitempty"`
}

// maxReason is how much of a reason is passed on, in bytes.
const maxReason = 8 << 10

// WriteMessage writes a message with the concatenated parts as its body.
func WriteMessage(w io.Writer, kind Kind, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > MaxMessage {
		return fmt.Errorf("a message of %d bytes; the longest has %d", n, MaxMessage)
	}
	message := make([]byte, headLength, headLength+n)
	message[0] = byte(kind)
	binary.BigEndian.PutUint32(message[1:], uint32(n))
	for _, p := range parts {
		message = append(message, p...)
	}
	_, err := w.Write(message)
	return err
}

// ReadMessage reads a message. It returns io.EOF after the last one, and takes no more memory than
// the received bytes, for any claimed length.
func ReadMessage(r io.Reader) (Kind, []byte, error) {
	var head [headLength]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	kind, n := Kind(head[0]), binary.BigEndian.Uint32(head[1:])
	if kind < KindPolicy || kind > KindAnswer {
		return 0, nil, fmt.Errorf("a message of kind %d", kind)
	}
	if n > MaxMessage {
		return 0, nil, fmt.Errorf("a message of %d bytes; the longest has %d", n, MaxMessage)
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, body.Bytes(), nil
}

// ReadAnswer reads the program's answer. The program has handled data from outside, so
// nothing that it says is taken unseen.
func ReadAnswer(r io.Reader) (a Answer, err error) {
	kind, body, err := ReadMessage(r)
	if err != nil {
		return a, err
	}
	if kind != KindAnswer {
		return a, fmt.Errorf("a message of kind %d in place of an answer", kind)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		return Answer{}, fmt.Errorf("an answer that is malformed: %w", err)
	}
	if dec.More() {
		return Answer{}, errors.New("an answer that goes on")
	}
	a.Reason = printable(a.Reason)
	return a, nil
}

// WriteAnswer writes an answer.
func WriteAnswer(w io.Writer, a Answer) error {
	if len(a.Reason) > maxReason {
		a.Reason = a.Reason[:maxReason]
	}
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return WriteMessage(w, KindAnswer, body)
}

// SplitQuestion returns the parts of a message of KindQuestion.
func SplitQuestion(body []byte) (request string, input []byte, err error) {
	name, input, ok := bytes.Cut(body, []byte{0})
	if !ok || len(name) == 0 || len(name) > maxName {
		return "", nil, errors.New("a question without the name of a request")
	}
	for _, c := range name {
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return "", nil, errors.New("a question about a request whose name has other signs than letters")
		}
	}
	return string(name), input, nil
}

// maxName is how long the name of a request may be.
const maxName = 100
