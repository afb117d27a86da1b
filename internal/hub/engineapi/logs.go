package engineapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/invalid"
)

// format is how lines are written.
type format struct {
	raw, timestamps, details bool
}

// options translates a request for output.
func options(r *http.Request) (*swarmv1.LogSubscriptionOptions, format, error) {
	q := r.URL.Query()
	o := &swarmv1.LogSubscriptionOptions{Follow: boolean(r, "follow")}
	if boolean(r, "stdout") {
		o.Streams = append(o.GetStreams(), swarmv1.LogStream_LOG_STREAM_STDOUT)
	}
	if boolean(r, "stderr") {
		o.Streams = append(o.GetStreams(), swarmv1.LogStream_LOG_STREAM_STDERR)
	}
	if len(o.GetStreams()) == 0 {
		return nil, format{}, invalid.Errorf("you must choose at least one stream")
	}
	if text := q.Get("tail"); text != "" && text != "all" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return nil, format{}, invalid.Errorf("tail value must be a positive integer or \"all\"")
		}
		o.Tail = -1 - n
	}
	if text := q.Get("since"); text != "" && text != "0" {
		at, err := dockerhttp.Moment("since", text)
		if err != nil {
			return nil, format{}, err
		}
		o.Since = timestamppb.New(at)
	}
	if text := q.Get("until"); text != "" && text != "0" {
		return nil, format{}, invalid.Errorf("the output of services cannot be limited by until")
	}
	return o, format{timestamps: boolean(r, "timestamps"), details: boolean(r, "details")}, nil
}

// logs sends the output of tasks as it comes: lines, each with the stream that it is of, or
// lines alone when the tasks have a terminal.
func (s Server) logs(w http.ResponseWriter, r *http.Request, selector *swarmv1.LogSelector, tty bool) {
	o, f, err := options(r)
	if err != nil {
		refuse(w, err)
		return
	}
	f.raw = tty
	sub := s.Output(selector, o)
	defer sub.Close()
	w.Header().Set("Content-Type", dockerhttp.MultiplexedStream)
	if tty {
		w.Header().Set("Content-Type", dockerhttp.RawStream)
	}
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	_ = out.Flush()
	for {
		select {
		case m := <-sub.Messages:
			if _, err := w.Write(f.frame(m, s.from(m))); err != nil || out.Flush() != nil { //nolint:gosec // no browser asks
				return // the client is gone
			}
		case <-sub.Done:
			if missing := sub.Missing(); len(missing) > 0 {
				_, _ = w.Write(f.multiplexed(dockerhttp.SystemError, fmt.Appendf(nil, "the output of these nodes is not complete: %s\n", strings.Join(missing, " ")))) //nolint:gosec // as above
			}
			return
		case <-r.Context().Done():
			return
		}
	}
}

// from is the service that a message is of.
func (s Server) from(m *swarmv1.LogMessage) string {
	t, _ := s.Records.Task(m.GetContext().GetTaskId())
	return t.M.GetServiceId()
}

// frame is a message of a service as it is sent.
func (f format) frame(m *swarmv1.LogMessage, service string) []byte {
	var line []byte
	if f.timestamps {
		line = append(m.GetTimestamp().AsTime().AppendFormat(line, "2006-01-02T15:04:05.000000000Z07:00"), ' ')
	}
	if f.details {
		line = append(append(line, details(m, service)...), ' ')
	}
	line = append(line, m.GetData()...)
	if n := len(line); n == 0 || line[n-1] != '\n' {
		line = append(line, '\n')
	}
	stream := dockerhttp.Stdout
	if m.GetStream() == swarmv1.LogStream_LOG_STREAM_STDERR {
		stream = dockerhttp.Stderr
	}
	return f.multiplexed(stream, line)
}

// details are the origin of a line, and its log driver's attributes.
func details(m *swarmv1.LogMessage, service string) string {
	const prefix = "com.docker.swarm."
	all := []string{
		prefix + "node.id=" + url.QueryEscape(m.GetContext().GetNodeId()), prefix + "service.id=" + url.QueryEscape(service), prefix + "task.id=" + url.QueryEscape(m.GetContext().GetTaskId()),
	}
	for _, a := range m.GetAttrs() {
		if !strings.HasPrefix(a.GetKey(), prefix) { // where it is from is not for a node to say
			all = append(all, url.QueryEscape(a.GetKey())+"="+url.QueryEscape(a.GetValue()))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// multiplexed is a line with the head that says its stream and its length.
func (f format) multiplexed(stream byte, line []byte) []byte {
	if f.raw {
		return line
	}
	return dockerhttp.Frame(stream, line)
}
