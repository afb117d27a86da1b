package ui

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// maxTail bounds the lines of a log that one answer begins with.
const maxTail = 20000

// logs sends the output of a container, a JSON document for each chunk, and with follow also its new output.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	tail, err := number(r, "tail", 1000, maxTail)
	if err != nil {
		return err
	}
	stream, err := s.api.containers.Logs(r.Context(), &longshorev1.LogsRequest{Name: name, Follow: r.URL.Query().Get("follow") == "1", Tail: &tail})
	if err != nil {
		return err
	}
	chunk, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err // the answer has not begun
	}
	out := newLines(w)
	for ; err == nil; chunk, err = stream.Recv() {
		if err := out.send(chunkOf(chunk)); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
	}
	if !errors.Is(err, io.EOF) && r.Context().Err() == nil {
		_ = out.send(map[string]string{"error": err.Error()})
	}
	return nil
}

// chunk is a part of a log.
type chunk struct {
	At      int64  `json:"t"` // milliseconds
	Stream  string `json:"s"`
	Text    string `json:"d"`
	Partial bool   `json:"p,omitempty"`
}

func chunkOf(m *longshorev1.LogsResponse) chunk {
	return chunk{millis(m.GetAt()), m.GetStream(), strings.ToValidUTF8(string(m.GetData()), "\uFFFD"), m.GetPartial()}
}

// lines sends JSON documents, one in a line, each at once.
type lines struct {
	w    io.Writer
	ctrl *http.ResponseController
}

func newLines(w http.ResponseWriter) lines {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	l := lines{w, http.NewResponseController(w)}
	_ = l.ctrl.Flush()
	return l
}

func (l lines) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return l.write(append(data, '\n'))
}

func (l lines) write(line []byte) error {
	if _, err := l.w.Write(line); err != nil {
		return err
	}
	return l.ctrl.Flush()
}
