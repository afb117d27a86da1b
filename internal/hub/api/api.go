// Package api is what operators ask a hub: JSON over HTTP on a socket for its owner alone.
//
// Values of secrets are never in an answer. Start at Server.Serve.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/board"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/session"
	"github.com/longshore/longshore/internal/invalid"
)

// Server answers operators.
type Server struct {
	CA         *ca.Service
	Board      *board.Board
	Broker     *session.Broker
	Dispatcher *session.Dispatcher
	Log        *slog.Logger
}

// Node is a node as operators see it.
type Node struct {
	ID           string            `json:"id"`
	Hostname     string            `json:"hostname"`
	State        string            `json:"state"`
	Message      string            `json:"message,omitempty"`
	Availability string            `json:"availability"`
	Membership   string            `json:"membership"`
	Certificate  string            `json:"certificate"`
	Address      string            `json:"address,omitempty"`
	Engine       string            `json:"engine,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Joined       time.Time         `json:"joined"`
}

// NodeChange changes a node; what is nil stays.
type NodeChange struct {
	Accept       bool               `json:"accept,omitempty"`
	Renew        bool               `json:"renew,omitempty"` // its certificate
	Availability *string            `json:"availability,omitempty"`
	Labels       map[string]*string `json:"labels,omitempty"` // a label that is nil goes
}

// Service is a service as operators see it.
type Service struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Stack   string `json:"stack"`
	Mode    string `json:"mode"`
	Wanted  uint64 `json:"wanted"`
	Running int    `json:"running"`
	Version uint64 `json:"version"`
	Image   string `json:"image"`
	// Update is how far its last update is, and UpdateMessage why.
	Update        string `json:"update,omitempty"`
	UpdateMessage string `json:"update_message,omitempty"`
}

// UpdateStep is one step with the update of a service.
type UpdateStep struct {
	Step string `json:"step"` // rollback, pause or resume
}

// Task is a task as operators see it.
type Task struct {
	ID       string    `json:"id"`
	Service  string    `json:"service"`
	Slot     uint64    `json:"slot,omitempty"`
	Node     string    `json:"node"`
	Hostname string    `json:"hostname"`
	Desired  string    `json:"desired"`
	State    string    `json:"state"`
	Message  string    `json:"message,omitempty"`
	Error    string    `json:"error,omitempty"`
	Exit     int32     `json:"exit,omitempty"`
	Version  uint64    `json:"version"`
	Changed  time.Time `json:"changed"`
}

// Line is a line of a task's output, or the nodes from which some is missing.
type Line struct {
	Task    string    `json:"task,omitempty"`
	Node    string    `json:"node,omitempty"`
	Stream  string    `json:"stream,omitempty"`
	Time    time.Time `json:"time,omitzero"`
	Data    []byte    `json:"data,omitempty"`
	Missing []string  `json:"missing,omitempty"`
}

// Token is the answer with a join token.
type Token struct {
	Worker string `json:"worker"`
}

// Failure is the answer to what was refused.
type Failure struct {
	Error string `json:"error"`
}

// Serve answers at a listener until ctx ends.
func (s Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		_ = server.Close()
	}()
	err := server.Serve(l)
	if ctx.Err() != nil {
		<-stopped
		return context.Cause(ctx)
	}
	return fmt.Errorf("serve operators: %w", err)
}

func (s Server) handler() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern string, fn func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, fleet.MaxBytes)
			answer, err := fn(r)
			reply(w, answer, err)
		})
	}
	route("GET /v1/token", func(*http.Request) (any, error) { return Token{s.CA.Authority.Token()}, nil })
	route("POST /v1/token/rotate", func(r *http.Request) (any, error) {
		token, err := s.CA.Authority.RotateToken(r.Context())
		return Token{token}, err
	})
	route("GET /v1/nodes", func(*http.Request) (any, error) { return s.nodes(), nil })
	route("PATCH /v1/nodes/{id}", s.changeNode)
	route("DELETE /v1/nodes/{id}", func(r *http.Request) (any, error) {
		return struct{}{}, s.CA.Remove(r.Context(), r.PathValue("id"))
	})
	route("GET /v1/services", func(*http.Request) (any, error) { return s.services(), nil })
	route("POST /v1/services/{service}/update", func(r *http.Request) (any, error) {
		var u UpdateStep
		if err := decode(r.Body, &u); err != nil {
			return nil, err
		}
		return struct{}{}, fleet.Step(r.Context(), s.Board, r.PathValue("service"), u.Step)
	})
	route("GET /v1/tasks", func(*http.Request) (any, error) { return s.tasks(), nil })
	route("PUT /v1/stacks", s.apply)
	mux.HandleFunc("GET /v1/logs", s.logs)
	return mux
}

// reply writes an answer, or why there is none.
func reply(w http.ResponseWriter, answer any, err error) {
	code := http.StatusOK
	if err != nil {
		code, answer = status(err), Failure{err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // who asked may be gone
}

func status(err error) int {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errdefs.IsInvalidArgument(err):
		return http.StatusBadRequest
	case errdefs.IsNotFound(err):
		return http.StatusNotFound
	case errdefs.IsAborted(err), errdefs.IsFailedPrecondition(err):
		return http.StatusConflict
	case errdefs.IsUnavailable(err), errdefs.IsResourceExhausted(err):
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// decode reads a body, which has one value and nothing that is not known.
func decode(r io.Reader, into any) error {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return invalid.Errorf("the request cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid.Errorf("the request has more than one value")
	}
	return nil
}

func (s Server) apply(r *http.Request) (any, error) {
	var d fleet.Declaration
	if err := decode(r.Body, &d); err != nil {
		return nil, err
	}
	diff, err := fleet.Apply(r.Context(), s.Board, d, r.URL.Query().Get("dry") != "")
	if err != nil {
		return nil, err
	}
	return diff, nil
}

func (s Server) nodes() []Node {
	list := []Node{}
	for _, n := range s.Board.Nodes() {
		state := "never seen"
		if n.GetStatus() != nil {
			state = strings.ToLower(n.GetStatus().GetState().String())
		}
		list = append(list, Node{
			ID: n.GetId(), Hostname: n.GetDescription().GetHostname(), State: state, Message: n.GetStatus().GetMessage(), Address: n.GetStatus().GetAddr(),
			Availability: strings.ToLower(n.GetSpec().GetAvailability().String()), Membership: strings.ToLower(n.GetSpec().GetMembership().String()),
			Certificate: strings.ToLower(n.GetCertificate().GetStatus().GetState().String()), Engine: n.GetDescription().GetEngine().GetEngineVersion(),
			Labels: n.GetSpec().GetAnnotations().GetLabels(), Joined: n.GetMeta().GetCreatedAt().AsTime(),
		})
	}
	return list
}

// The limits of a node's labels.
const (
	maxLabels = 100
	maxLabel  = 256
)

func (s Server) changeNode(r *http.Request) (any, error) {
	var c NodeChange
	if err := decode(r.Body, &c); err != nil {
		return nil, err
	}
	id := r.PathValue("id")
	availability, known := int32(0), true
	if c.Availability != nil {
		availability, known = swarmv1.NodeSpec_Availability_value[strings.ToUpper(*c.Availability)]
	}
	if !known {
		return nil, invalid.Errorf("the availability %.40q is none of active, pause and drain", *c.Availability)
	}
	for k, v := range c.Labels {
		if k == "" || len(k) > maxLabel || v != nil && len(*v) > maxLabel {
			return nil, invalid.Errorf("the label %.80q: a name and a value of at most %d bytes", k, maxLabel)
		}
	}
	if c.Accept {
		if err := s.CA.Accept(r.Context(), id); err != nil {
			return nil, err
		}
	}
	if c.Renew {
		if err := s.CA.Rotate(r.Context(), id); err != nil {
			return nil, err
		}
	}
	return struct{}{}, s.CA.Change(r.Context(), id, func(n *swarmv1.Node) error {
		if c.Availability != nil {
			n.Spec.Availability = swarmv1.NodeSpec_Availability(availability)
		}
		at := n.GetSpec().GetAnnotations()
		if at.Labels == nil {
			at.Labels = map[string]string{}
		}
		for k, v := range c.Labels {
			if v == nil {
				delete(at.GetLabels(), k)
			} else {
				at.Labels[k] = *v
			}
		}
		if len(at.GetLabels()) > maxLabels {
			return invalid.Errorf("a node has at most %d labels", maxLabels)
		}
		return nil
	})
}

func (s Server) services() []Service {
	running := map[string]int{}
	places := map[string]uint64{} // of global services: those that have a task that is to run
	for _, t := range s.Board.Tasks() {
		if t.State() == swarmv1.TaskState_RUNNING {
			running[t.M.GetServiceId()]++
		}
		if !t.Ended() && t.M.GetDesiredState() <= swarmv1.TaskState_RUNNING {
			places[t.M.GetServiceId()]++
		}
	}
	list := []Service{}
	for id, r := range s.Board.Services() {
		spec := r.M.GetSpec()
		v := Service{
			ID: id, Name: spec.GetAnnotations().GetName(), Stack: spec.GetAnnotations().GetLabels()[fleet.Stack], Mode: "replicated", Wanted: spec.GetReplicated().GetReplicas(),
			Running: running[id], Version: r.M.GetSpecVersion().GetIndex(), Image: spec.GetTask().GetContainer().GetImage(),
			Update: fleet.Progress(r.M.GetUpdateStatus()), UpdateMessage: r.M.GetUpdateStatus().GetMessage(),
		}
		if spec.GetGlobal() != nil {
			v.Mode, v.Wanted = "global", places[id]
		}
		list = append(list, v)
	}
	return sorted(list, func(v Service) string { return v.Name })
}

func (s Server) tasks() []Task {
	names := map[string]string{}
	for id, r := range s.Board.Services() {
		names[id] = r.M.GetSpec().GetAnnotations().GetName()
	}
	hosts := map[string]string{}
	for _, n := range s.Board.Nodes() {
		hosts[n.GetId()] = n.GetDescription().GetHostname()
	}
	list := []Task{}
	for id, t := range s.Board.Tasks() {
		changed := t.Status.M.GetTimestamp()
		if changed == nil {
			changed = t.M.GetMeta().GetCreatedAt()
		}
		name := names[t.M.GetServiceId()]
		if name == "" {
			name = t.M.GetServiceAnnotations().GetName()
		}
		list = append(list, Task{
			ID: id, Service: name, Slot: t.M.GetSlot(), Node: t.M.GetNodeId(), Hostname: hosts[t.M.GetNodeId()],
			Desired: strings.ToLower(t.M.GetDesiredState().String()), State: strings.ToLower(t.State().String()), Message: t.Status.M.GetMessage(), Error: t.Status.M.GetErr(),
			Exit: t.Status.M.GetContainer().GetExitCode(), Version: t.M.GetSpecVersion().GetIndex(), Changed: changed.AsTime(),
		})
	}
	return sorted(list, func(t Task) string { return fmt.Sprintf("%s %05d %s %s", t.Service, t.Slot, t.Node, t.ID) })
}
