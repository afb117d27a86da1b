package mesos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/fetch/store"
)

// TestMain lets the test binary be the process that stores fetched files.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == store.Arg {
		os.Exit(store.Main(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// testNode is the face over a fake node, and a client of it.
type testNode struct {
	*enginetest.Node
	t      *testing.T
	work   string
	level  *slog.LevelVar
	all    bool // it shows all owners
	client *http.Client
	server *server
	// tcp makes the face listen at address, and configures it.
	tcp     func(c *Config)
	address string
	// gcDelay makes the face collect by itself, when it is not zero.
	gcDelay Duration
	// config changes the face's, when it is not nil.
	config func(c *Config)
	// recovered is closed when the node has recovered; nil: it has.
	recovered chan struct{}
	// heartbeat is how often streams have signs of life, when it is not zero.
	heartbeat time.Duration
	// shutdown ends the face and waits until it has answered every call.
	shutdown func()
}

func newTestNode(t *testing.T) *testNode {
	t.Helper()
	n := &testNode{Node: enginetest.Fakes(t), t: t, work: filepath.Join(t.TempDir(), "work"), level: new(slog.LevelVar)}
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	n.Images.Offer("busybox", imagespec.ImageConfig{Cmd: []string{"serve"}, Env: []string{"PATH=/bin", "A=image"}, WorkingDir: "/srv"},
		map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/var/www:/bin/sh\n", "etc/group": "root:x:0:\nweb:x:33:\n"})
	n.serve()
	return n
}

// needsRoot skips a test that an ordinary user runs.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the face gives sandboxes to their users, which only root may")
	}
}

// serve starts the face on a socket of the test.
func (n *testNode) serve() {
	n.t.Helper()
	needsRoot(n.t)
	cfg := DefaultConfig()
	cfg.WorkDir, cfg.GCDelay, cfg.FetchDirs = n.work, n.gcDelay, []string{"/"}
	if n.config != nil {
		n.config(&cfg)
	}
	if n.tcp != nil {
		cfg.Listen = "127.0.0.1:0"
		n.tcp(&cfg)
	}
	o := Options{Deps: face.Deps{Engine: n.As(core.OwnerMesos), Logger: slog.New(slog.DiscardHandler), Version: "1.2.3"}, Config: cfg, Level: n.level, Recovered: n.recovered}
	if n.all {
		o.All = ReaderOf(n.Engine.All())
	}
	f, err := New(o)
	if err != nil {
		n.t.Fatal(err)
	}
	n.server = f.server
	if n.heartbeat > 0 {
		f.server.heartbeat = n.heartbeat
	}
	path := filepath.Join(n.t.TempDir(), "m.sock")
	l, err := (&net.ListenConfig{}).Listen(n.t.Context(), "unix", path)
	if err != nil {
		n.t.Fatal(err)
	}
	listeners := []net.Listener{l}
	if n.tcp != nil {
		if l, err = (&net.ListenConfig{}).Listen(n.t.Context(), "tcp", cfg.Listen); err != nil {
			n.t.Fatal(err)
		}
		listeners, n.address = append(listeners, l), l.Addr().String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Serve(ctx, listeners...); err != nil && !errors.Is(err, enginetest.ErrCrash) {
			n.t.Errorf("the face ended: %v", err)
		}
	})
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	n.client = &http.Client{Transport: tr}
	n.shutdown = sync.OnceFunc(func() { cancel(); wg.Wait(); tr.CloseIdleConnections() })
	n.t.Cleanup(n.shutdown)
}

// post sends a call in JSON and returns the answer's status and body.
func (n *testNode) post(body string) (int, string) {
	n.t.Helper()
	r, err := http.NewRequestWithContext(n.t.Context(), http.MethodPost, "http://mesos/api/v1", strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := n.client.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// is sends a call and wants this answer.
func (n *testNode) is(body string, code int, text string) {
	n.t.Helper()
	if c, got := n.post(body); c != code || got != text {
		n.t.Errorf("%s:\n%d %q, want\n%d %q", body, c, got, code, text)
	}
}

// answer sends a call in JSON and reads its answer.
func (n *testNode) answer(body string) *mesosagent.Response {
	n.t.Helper()
	code, text := n.post(body)
	resp := &mesosagent.Response{}
	if code != http.StatusOK {
		n.t.Fatalf("%s: %d %q", body, code, text)
	}
	if err := api.UnmarshalJSON([]byte(text), resp); err != nil {
		n.t.Fatalf("%s: %q: %v", body, text, err)
	}
	return resp
}

func TestPlainCalls(t *testing.T) {
	n := newTestNode(t)
	n.is(`{"type":"GET_HEALTH"}`, 200, `{"type":"GET_HEALTH","get_health":{"healthy":true}}`)
	n.is(`{"type":"GET_VERSION"}`, 200, `{"type":"GET_VERSION","get_version":{"version_info":{"version":"1.2.3"}}}`)
	n.is(`{"type":"GET_STATE"}`, 200, `{"type":"GET_STATE","get_state":{"get_tasks":{},"get_executors":{},"get_frameworks":{}}}`)
	n.is(`{"type":"GET_TASKS"}`, 200, `{"type":"GET_TASKS","get_tasks":{}}`)
	n.is(`{"type":"GET_EXECUTORS"}`, 200, `{"type":"GET_EXECUTORS","get_executors":{}}`)
	n.is(`{"type":"GET_FRAMEWORKS"}`, 200, `{"type":"GET_FRAMEWORKS","get_frameworks":{}}`)
	n.is(`{"type":"GET_OPERATIONS"}`, 200, `{"type":"GET_OPERATIONS","get_operations":{}}`)
	n.is(`{"type":"GET_RESOURCE_PROVIDERS"}`, 200, `{"type":"GET_RESOURCE_PROVIDERS","get_resource_providers":{}}`)
	flags := map[string]string{}
	for _, f := range n.answer(`{"type":"GET_FLAGS"}`).GetGetFlags().GetFlags() {
		flags[f.GetName()] = f.GetValue()
	}
	if flags["work_dir"] != n.work || flags["http_heartbeat_interval"] != "30secs" {
		t.Errorf("flags %v", flags)
	}
	metrics := map[string]float64{}
	for _, m := range n.answer(`{"type":"GET_METRICS","get_metrics":{"timeout":{"nanoseconds":1}}}`).GetGetMetrics().GetMetrics() {
		metrics[m.GetName()] = m.GetValue()
	}
	if metrics["system/cpus_total"] < 1 || metrics["system/mem_total_bytes"] < metrics["system/mem_free_bytes"] || metrics["slave/uptime_secs"] <= 0 {
		t.Errorf("metrics %v", metrics)
	}
	info := n.answer(`{"type":"GET_AGENT"}`).GetGetAgent().GetAgentInfo()
	if host, _ := os.Hostname(); info.GetHostname() != host || len(info.GetResources()) != 3 || info.GetResources()[0].GetScalar().GetValue() < 1 {
		t.Errorf("agent %v", info)
	}
}

func TestLoggingLevel(t *testing.T) {
	n := newTestNode(t)
	n.is(`{"type":"GET_LOGGING_LEVEL"}`, 200, `{"type":"GET_LOGGING_LEVEL","get_logging_level":{"level":0}}`)
	n.is(`{"type":"SET_LOGGING_LEVEL","set_logging_level":{"level":2,"duration":{"nanoseconds":3600000000000}}}`, 200, "")
	n.is(`{"type":"GET_LOGGING_LEVEL"}`, 200, `{"type":"GET_LOGGING_LEVEL","get_logging_level":{"level":2}}`)
	if n.level.Level() != slog.LevelDebug {
		t.Errorf("the log is at %s", n.level.Level())
	}
	n.is(`{"type":"SET_LOGGING_LEVEL","set_logging_level":{"level":0,"duration":{"nanoseconds":0}}}`, 200, "")
	if n.level.Level() != slog.LevelInfo {
		t.Errorf("the log is at %s", n.level.Level())
	}
}

// TestProtobuf: the same in the other form.
func TestProtobuf(t *testing.T) {
	n := newTestNode(t)
	body, err := proto.Marshal(&mesosagent.Call{Type: mesosagent.Call_GET_VERSION.Enum()})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://mesos/slave(1)/api/v1", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Accept", "application/x-protobuf")
	resp, err := n.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got mesosagent.Response
	if err := proto.Unmarshal(raw, &got); err != nil || got.GetGetVersion().GetVersionInfo().GetVersion() != "1.2.3" || resp.Header.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("%v, %v, %v", &got, err, resp.Header)
	}
}
