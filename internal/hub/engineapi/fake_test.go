package engineapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// memory has records in memory, the authority, and nodes' changes.
type memory struct {
	mu       sync.Mutex // guards all below
	revs     map[string]int64
	rev      int64
	services map[string]inventory.Record[*swarmv1.Service]
	secrets  map[string]inventory.Record[*swarmv1.Secret]
	configs  map[string]inventory.Record[*swarmv1.Config]
	nodes    map[string]inventory.Record[*swarmv1.Node]
	tasks    map[string]inventory.Task
	next     chan struct{}
	rotated  []string
	// before is called before each commit, once.
	before func()
}

func (m *memory) Services() map[string]inventory.Record[*swarmv1.Service] {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.services)
}

func (m *memory) Secrets() map[string]inventory.Record[*swarmv1.Secret] {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.secrets)
}

func (m *memory) Configs() map[string]inventory.Record[*swarmv1.Config] {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.configs)
}

func (m *memory) Tasks() map[string]inventory.Task {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.tasks)
}

func (m *memory) Task(id string) (inventory.Task, bool) {
	t, ok := m.Tasks()[id]
	return t, ok
}

func (m *memory) Nodes() (list []*swarmv1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		list = append(list, n.M)
	}
	return list
}

func (m *memory) Node(id string) (*swarmv1.Node, int64, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[id].M, m.nodes[id].Rev, 0
}

func (m *memory) Turn() store.Write {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := store.Write{Key: "declared/", If: m.revs["declared/"]}
	if w.If == 0 {
		w.If = store.Absent
	}
	return w
}

func (m *memory) Next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

func (m *memory) Commit(_ context.Context, writes ...store.Write) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if fn := m.before; fn != nil {
		m.before = nil
		m.mu.Unlock()
		fn()
		m.mu.Lock()
	}
	for _, w := range writes {
		if w.Err != nil {
			return 0, w.Err
		}
		if w.If != store.Any && m.revs[w.Key] != max(w.If, 0) {
			return 0, fmt.Errorf("%s: %w", w.Key, errdefs.ErrAborted)
		}
	}
	m.rev++
	for _, w := range writes {
		m.revs[w.Key] = m.rev
		if w.Delete {
			delete(m.revs, w.Key)
		}
		kind, id, _ := strings.Cut(w.Key, "/")
		switch kind + "/" {
		case inventory.Services:
			record(m.services, id, w, m.rev, new(swarmv1.Service))
		case inventory.Secrets:
			record(m.secrets, id, w, m.rev, new(swarmv1.Secret))
		case inventory.Configs:
			record(m.configs, id, w, m.rev, new(swarmv1.Config))
		}
	}
	close(m.next)
	m.next = make(chan struct{})
	return m.rev, nil
}

func record[T proto.Message](all map[string]inventory.Record[T], id string, w store.Write, rev int64, into T) {
	if w.Delete {
		delete(all, id)
		return
	}
	if err := proto.Unmarshal(w.Value, into); err != nil {
		panic(err)
	}
	all[id] = inventory.Record[T]{M: into, Rev: rev}
}

func (m *memory) Change(_ context.Context, id string, fn func(*swarmv1.Node) error) error {
	n := proto.CloneOf(m.nodes[id].M)
	if err := fn(n); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rev++
	m.nodes[id] = inventory.Record[*swarmv1.Node]{M: n, Rev: m.rev}
	return nil
}

func (m *memory) Remove(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, id)
	return nil
}

func (m *memory) Token() string  { return "SWMTKN-1-worker" + strings.Join(m.rotated, "") }
func (m *memory) Roots() []byte  { return []byte("no certificate") }
func (m *memory) Rotating() bool { return false }

func (m *memory) RotateToken(context.Context) (string, error) {
	m.rotated = append(m.rotated, "token")
	return m.Token(), nil
}

func (m *memory) RotateRoot(context.Context) error {
	m.rotated = append(m.rotated, "root")
	return nil
}

// door is a server over memory, for a test.
type door struct {
	*memory
	t       *testing.T
	server  Server
	handler http.Handler
	pending []inventory.Task
}

func newDoor(t *testing.T) *door {
	t.Helper()
	m := &memory{
		revs: map[string]int64{}, services: map[string]inventory.Record[*swarmv1.Service]{}, secrets: map[string]inventory.Record[*swarmv1.Secret]{}, configs: map[string]inventory.Record[*swarmv1.Config]{},
		nodes: map[string]inventory.Record[*swarmv1.Node]{}, tasks: map[string]inventory.Task{}, next: make(chan struct{}),
	}
	for _, id := range []string{"node1", "node2"} {
		m.nodes[id] = inventory.Record[*swarmv1.Node]{Rev: 7, M: &swarmv1.Node{
			Id: id, Spec: &swarmv1.NodeSpec{Annotations: &swarmv1.Annotations{Labels: map[string]string{"site": id}}, Membership: swarmv1.NodeSpec_ACCEPTED}, Meta: &swarmv1.Meta{},
			Description: &swarmv1.NodeDescription{Hostname: "host-" + id}, Status: &swarmv1.NodeStatus{State: swarmv1.NodeStatus_READY, Addr: "192.0.2.1"},
		}}
	}
	m.nodes["node2"].M.Status.State = swarmv1.NodeStatus_DOWN
	d := &door{memory: m, t: t, server: Server{
		Records: m, Trust: m, Nodes: m, Log: slog.New(slog.DiscardHandler),
		Self: Self{Cluster: "cluster", Hub: "thehub", Address: "hub.example:2377", Hostname: "hubhost", Version: "1.2", Heartbeat: 5 * time.Second, CertificateLife: time.Hour, TaskHistory: 4},
	}}
	d.server.Pending = func() []inventory.Task { return d.pending }
	d.handler = d.server.Handler()
	return d
}

// ask makes a request and returns the answer's code and body.
func (d *door) ask(method, path, body string, header ...string) (int, string) {
	d.t.Helper()
	r := httptest.NewRequestWithContext(d.t.Context(), method, "http://docker"+path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	data, err := io.ReadAll(w.Result().Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return w.Code, strings.TrimSpace(string(data))
}

// must is ask that must be answered so, as JSON if into is not nil.
func (d *door) must(code int, method, path, body string, into any, header ...string) string {
	d.t.Helper()
	got, text := d.ask(method, path, body, header...)
	if got != code {
		d.t.Fatalf("%s %s: %d %s, want %d", method, path, got, text, code)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			d.t.Fatalf("%s %s: %s: %v", method, path, text, err)
		}
	}
	return text
}
