package trail

import (
	"encoding/json"
	"net/http"
)

// Response writes a line to the trail before the client has the answer.
type Response struct {
	http.ResponseWriter
	log    *Log
	record Record
	failed bool // the answer's text is the error
	done   bool
}

// Answers returns the response that writes r. A failed request's line has the text of its answer.
func (l *Log) Answers(w http.ResponseWriter, r Record) *Response {
	return &Response{ResponseWriter: w, log: l, record: r}
}

// Detail sets the detail of the line.
func (w *Response) Detail(text string) { w.record.Detail = text }

// WriteHeader implements http.ResponseWriter.
func (w *Response) WriteHeader(code int) {
	if code >= http.StatusBadRequest {
		w.record.Outcome, w.failed = Failed, true
		w.record.Error = http.StatusText(code)
	} else {
		w.write(OK)
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *Response) Write(b []byte) (int, error) {
	if w.failed && !w.done {
		var text struct{ Error, Message string }
		if json.Unmarshal(b, &text) == nil && text.Error+text.Message != "" {
			w.record.Error = text.Error + text.Message
		}
		w.write(Failed)
	}
	w.write(OK)
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (w *Response) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap is for http.ResponseController.
func (w *Response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Handle answers a request by h. The line of one that panics says that it has failed.
func (w *Response) Handle(h http.Handler, r *http.Request) {
	defer w.write(Failed)
	h.ServeHTTP(w, r)
	if !w.failed {
		w.write(OK)
	}
}

func (w *Response) write(outcome string) {
	if w.done {
		return
	}
	w.done, w.record.Outcome = true, outcome
	w.log.Write(w.record)
}
