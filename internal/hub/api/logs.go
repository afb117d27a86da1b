package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// GetLogs implements hubv1.ServerInterface.
func (s Server) GetLogs(w http.ResponseWriter, r *http.Request, p hubv1.GetLogsParams) {
	selector, o, err := s.subscription(p)
	if err != nil {
		reply(w, nil, err)
		return
	}
	sub := s.Broker.Subscribe(selector, o, func(node string) bool { return s.Dispatcher.Addr(node) != "" })
	defer sub.Close()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	enc, out := json.NewEncoder(w), http.NewResponseController(w)
	_ = out.Flush()
	for {
		select {
		case m := <-sub.Messages:
			line := hubv1.Line{
				Task: m.GetContext().GetTaskId(), Node: m.GetContext().GetNodeId(), Time: m.GetTimestamp().AsTime(), Data: m.GetData(),
				Stream: strings.ToLower(strings.TrimPrefix(m.GetStream().String(), "LOG_STREAM_")),
			}
			if enc.Encode(line) != nil || out.Flush() != nil {
				return // the client is gone
			}
		case <-sub.Done:
			if missing := sub.Missing(); len(missing) > 0 {
				_ = enc.Encode(hubv1.Line{Missing: missing})
			}
			return
		case <-r.Context().Done():
			return
		}
	}
}

// subscription translates a request for the output of a task, by its id, or of a service, by its
// name.
func (s Server) subscription(p hubv1.GetLogsParams) (*swarmv1.LogSelector, *swarmv1.LogSubscriptionOptions, error) {
	of := p.Of
	o := &swarmv1.LogSubscriptionOptions{Follow: p.Follow != ""}
	if text := p.Tail; text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return nil, nil, invalid.Errorf("tail %.40q is not a number of lines", text)
		}
		o.Tail = -1 - n
	}
	if _, ok := s.Inventory.Task(of); ok {
		return &swarmv1.LogSelector{TaskIds: []string{of}}, o, nil
	}
	for id, service := range s.Inventory.Services() {
		if service.M.GetSpec().GetAnnotations().GetName() == of {
			return &swarmv1.LogSelector{ServiceIds: []string{id}}, o, nil
		}
	}
	return nil, nil, fmt.Errorf("there is no service and no task %.100q: %w", of, errdefs.ErrNotFound)
}
