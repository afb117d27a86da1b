package obs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/connlimit"
)

func testLogger(t *testing.T) (*slog.Logger, *bytes.Buffer) {
	t.Helper()
	var buf bytes.Buffer
	log, _, err := NewLogger(&buf, LogConfig{Level: "debug", Format: "json"})
	if err != nil {
		t.Fatal(err)
	}
	return log, &buf
}

func TestLoggerAddsWhatTheContextCarries(t *testing.T) {
	log, buf := testLogger(t)
	ctx := WithAttrs(WithAttrs(t.Context(), slog.String("op", "Stop")), slog.String("container", "abc"))
	log.With("face", "cri").InfoContext(ctx, "stopped")
	for _, want := range []string{`"face":"cri"`, `"op":"Stop"`, `"container":"abc"`, `"msg":"stopped"`} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("log line %s lacks %s", buf, want)
		}
	}
}

func TestLoggerRefusesUnknownLevelAndFormat(t *testing.T) {
	for _, cfg := range []LogConfig{{Level: "loud"}, {Format: "xml"}} {
		if _, _, err := NewLogger(new(bytes.Buffer), cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestPanicInHandlerIsAnInternalErrorAndCounted(t *testing.T) {
	log, buf := testLogger(t)
	m := New(Options{})
	g := GRPC{Face: "cri", Metrics: m, Logger: log}
	_, err := g.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x.Y/Boom"}, func(context.Context, any) (any, error) { panic("secret plan") })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret plan") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(buf.String(), "secret plan") || !strings.Contains(buf.String(), "goroutine") {
		t.Errorf("log lacks the panic or its stack: %s", buf)
	}
	body := scrape(t, m)
	for _, want := range []string{
		`longshore_request_panics_total{face="cri"} 1`,
		`longshore_request_duration_seconds_count{code="Internal",face="cri",op="Boom"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(m, nil, nil).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMetricsShowTheMinimumSet(t *testing.T) {
	m := New(Options{Version: "1.2.3", Node: func(context.Context) Node {
		return Node{Objects: []Objects{{"cri", "sandbox", "ready", 3}}, KeeperBytes: 5, NestBytes: 6, Head: 7, LostOutput: 1, SleepingBytes: 9, WakeFaults: 4}
	}})
	usage := connlimit.Usage{Options: connlimit.Options{Name: "cri", Max: 9}, Open: 2, ClosedIdle: 3, ClosedUnauthenticated: 4, Refused: 5}
	if err := m.Register(Connections(func() []connlimit.Usage { return []connlimit.Usage{usage} })); err != nil {
		t.Fatal(err)
	}
	if err := m.Register(UnansweredNames(func() map[string]uint64 { return map[string]uint64{"loud": 8} })); err != nil {
		t.Fatal(err)
	}
	m.Request("cri", "Version", "OK", time.Millisecond)
	m.Stage("cri", "create.checkout", time.Millisecond)
	m.StoreTransaction("update", time.Millisecond)
	m.Pulled(42)
	m.Thawed(20 * time.Millisecond)
	m.Woken(3 * time.Second)
	body := scrape(t, m)
	for _, want := range []string{
		`longshore_request_duration_seconds_bucket{code="OK",face="cri",op="Version",le="0.001"} 1`,
		`longshore_engine_stage_duration_seconds_count{face="cri",stage="create.checkout"} 1`,
		`longshore_store_transaction_duration_seconds_count{kind="update"} 1`,
		`longshore_image_pulled_bytes_total 42`, `longshore_build_info{version="1.2.3"} 1`,
		`longshore_engine_objects{kind="sandbox",owner="cri",state="ready"} 3`,
		`longshore_keeper_memory_bytes{kind="keeper"} 5`, `longshore_keeper_memory_bytes{kind="nest"} 6`,
		`longshore_event_log_head 7`, `longshore_sleeping_bytes 9`, `longshore_wake_seconds_bucket{le="2.5"} 0`, `longshore_wake_seconds_sum 3`, `longshore_wake_latency_seconds_bucket{le="0.025"} 1`, `longshore_wake_faults_total 4`,
		`longshore_keeper_lost_output_bytes_total 1`,
		`longshore_connections_open{socket="cri"} 2`, `longshore_connections_limit{socket="cri"} 9`,
		`longshore_connections_closed_total{reason="idle",socket="cri"} 3`, `longshore_connections_closed_total{reason="unauthenticated",socket="cri"} 4`,
		`longshore_connections_closed_total{reason="peer",socket="cri"} 5`,
		`longshore_name_questions_unanswered_total{sandbox="loud"} 8`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestNilMetricsCountNothing(t *testing.T) {
	var m *Metrics
	m.Request("a", "b", "c", 0)
	m.Panic("a")
	m.Stage("a", "b", 0)
	m.StoreTransaction("view", 0)
	m.Pulled(1)
	m.Thawed(1)
	m.Woken(1)
}

func TestHealthTellsWhyNot(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(New(Options{}), func(context.Context) error { return errors.New("store is gone") }, nil).
		ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
	if w.Code != http.StatusServiceUnavailable || w.Body.String() != "store is gone\n" {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
}

func TestLogrusEndsUpInSlog(t *testing.T) {
	log, buf := testLogger(t)
	BridgeLogrus(log)
	logrus.WithError(errors.New("no space")).WithField("blob", "sha256:1").Warn("unpack failed")
	for _, want := range []string{`"level":"WARN"`, `"text":"unpack failed"`, `"error":"no space"`, `"blob":"sha256:1"`} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("log line %s lacks %s", buf, want)
		}
	}
}

func TestMetricsListenerMustKnowItsClients(t *testing.T) {
	for name, c := range map[string]MetricsConfig{
		"plain":      {Listen: "127.0.0.1:0"},
		"no clients": {Listen: "127.0.0.1:0", Cert: "c", Key: "k"},
		"no port":    {Listen: "localhost", Cert: "c", Key: "k", TokenFile: "t"},
	} {
		if err := c.Validate(); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	ok := MetricsConfig{Listen: "127.0.0.1:0", Cert: "c", Key: "k", TokenFile: "t"}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
}

func TestBearerToken(t *testing.T) {
	srv := httptest.NewServer(bearer("abc", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("in")) })))
	defer srv.Close()
	for header, want := range map[string]int{"": 401, "Bearer abd": 401, "abc": 401, "Bearer abc": 200} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", header)
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", header, resp.StatusCode, want)
		}
	}
}

func TestOpenRefusesAnEmptyToken(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := MetricsConfig{Listen: "127.0.0.1:0", Cert: "missing", Key: "missing", TokenFile: token}
	if _, _, err := c.Open(t.Context(), http.NotFoundHandler()); err == nil {
		t.Error("was opened")
	}
}
