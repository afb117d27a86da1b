package ui

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
)

// agent is a control API that answers from fields.
type agent struct {
	mu         sync.Mutex // guards all fields
	containers []*longshorev1.Container
	sandboxes  []*longshorev1.Sandbox
	events     chan *longshorev1.Event
	pulls      chan *longshorev1.WatchPullsResponse
	calls      []string // names of methods, and the user of changing ones
	streams    int      // open ones
	stopped    []*longshorev1.StopRequest
	execs      []*longshorev1.ExecRequest
}

func (a *agent) note(ctx context.Context, method string) {
	md, _ := metadata.FromOutgoingContext(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, method+" "+strings.Join(md.Get(access.Via), ","))
}

func (a *agent) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	a.note(ctx, method)
	a.mu.Lock()
	defer a.mu.Unlock()
	var m proto.Message
	switch method {
	case longshorev1.Containers_ListContainers_FullMethodName:
		m = &longshorev1.ListContainersResponse{Containers: a.containers}
	case longshorev1.Containers_ListSandboxes_FullMethodName:
		m = &longshorev1.ListSandboxesResponse{Sandboxes: a.sandboxes}
	case longshorev1.Containers_Why_FullMethodName:
		i := slices.IndexFunc(a.containers, func(c *longshorev1.Container) bool {
			return strings.HasPrefix(c.GetId(), args.(*longshorev1.WhyRequest).GetName())
		})
		if i < 0 {
			return status.Error(codes.NotFound, "no container")
		}
		m = &longshorev1.WhyResponse{Container: a.containers[i]}
	case longshorev1.Containers_Inspect_FullMethodName:
		env := "A=<hidden>"
		if args.(*longshorev1.InspectRequest).GetShowEnv() {
			env = "A=secret"
		}
		m = &longshorev1.InspectResponse{Kind: "container", Json: []byte(`{"env":["` + env + `"]}`)}
	case longshorev1.Containers_Stop_FullMethodName:
		a.stopped = append(a.stopped, args.(*longshorev1.StopRequest))
		m = &longshorev1.StopResponse{}
	default:
		return status.Error(codes.Unimplemented, method)
	}
	proto.Merge(reply.(proto.Message), m)
	return nil
}

func (a *agent) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	a.note(ctx, method)
	a.mu.Lock()
	a.streams++
	a.mu.Unlock()
	context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.streams--
	})
	return &stream{ctx: ctx, agent: a, method: method}, nil
}

func (a *agent) open() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streams
}

// stream is an answer of the agent.
type stream struct {
	grpc.ClientStream
	ctx    context.Context //nolint:containedctx // that of the call
	agent  *agent
	method string
	n      int
}

func (*stream) CloseSend() error { return nil }

func (s *stream) SendMsg(m any) error {
	if req, ok := m.(*longshorev1.ExecRequest); ok {
		s.agent.mu.Lock()
		defer s.agent.mu.Unlock()
		s.agent.execs = append(s.agent.execs, proto.Clone(req).(*longshorev1.ExecRequest))
	}
	return nil
}

func (s *stream) RecvMsg(m any) error {
	s.n++
	switch s.method {
	case longshorev1.Node_Events_FullMethodName:
		select {
		case e := <-s.agent.events:
			proto.Merge(m.(proto.Message), &longshorev1.EventsResponse{Event: e})
			return nil
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	case longshorev1.Images_WatchPulls_FullMethodName:
		select {
		case p := <-s.agent.pulls:
			proto.Merge(m.(proto.Message), p)
			return nil
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	case longshorev1.Node_Load_FullMethodName:
		if s.n == 1 {
			proto.Merge(m.(proto.Message), &longshorev1.LoadResponse{Cpus: 2})
			return nil
		}
	case longshorev1.Containers_Stats_FullMethodName:
		if s.n == 1 {
			proto.Merge(m.(proto.Message), &longshorev1.StatsResponse{Containers: []*longshorev1.ContainerStats{{Id: strings.Repeat("a", 64), Pids: proto.Uint64(3)}}})
			return nil
		}
	case longshorev1.Containers_Logs_FullMethodName:
		if s.n == 1 {
			proto.Merge(m.(proto.Message), &longshorev1.LogsResponse{Stream: "stdout", Data: []byte("<script>\xff")})
			return nil
		}
		return io.EOF
	case longshorev1.Containers_Exec_FullMethodName:
		switch s.n {
		case 1:
			proto.Merge(m.(proto.Message), &longshorev1.Output{Kind: &longshorev1.Output_Started{Started: &longshorev1.Started{Tty: true}}})
			return nil
		case 2:
			proto.Merge(m.(proto.Message), &longshorev1.Output{Kind: &longshorev1.Output_Stdout{Stdout: []byte("hi")}})
			return nil
		}
	}
	<-s.ctx.Done()
	return s.ctx.Err()
}

const token = "correct horse battery"

var (
	ours   = strings.Repeat("a", 64)
	theirs = strings.Repeat("b", 64)
)

// rig is a page over a fake agent.
type rig struct {
	t     *testing.T
	agent *agent
	ui    *Server
	srv   *httptest.Server
	key   string
	jar   []*http.Cookie
}

func newRig(t *testing.T, actions bool) *rig {
	t.Helper()
	a := &agent{events: make(chan *longshorev1.Event), pulls: make(chan *longshorev1.WatchPullsResponse), containers: []*longshorev1.Container{
		{Id: ours, Owner: "cli", Key: "web", State: "running", Sandbox: "s1"}, {Id: theirs, Owner: "cri", Key: "pod", State: "running", Sandbox: "s2"},
	}, sandboxes: []*longshorev1.Sandbox{{Id: "s1", Owner: "cli"}, {Id: "s2", Owner: "cri", Labels: map[string]string{"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "n"}}}}
	s, err := New(Options{Conn: a, Token: token, Actions: actions, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, agent: a, ui: s, srv: httptest.NewServer(s)}
	t.Cleanup(r.srv.Close)
	return r
}

// do makes a request of the session, which change may alter.
func (r *rig) do(method, path, body string, change func(*http.Request)) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.srv.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if r.key != "" {
		req.Header.Set(keyHeader, r.key)
	}
	for _, c := range r.jar {
		req.AddCookie(c)
	}
	if change != nil {
		change(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func (r *rig) login() *rig {
	r.t.Helper()
	resp := r.do(http.MethodPost, "/api/login", token, func(req *http.Request) { req.Header.Set(keyHeader, "login") })
	var answer struct{ Key string }
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&answer) != nil {
		r.t.Fatalf("login: %s", resp.Status)
	}
	r.key, r.jar = answer.Key, resp.Cookies()
	return r
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestWhoSeesThePage: its files everybody, its data only a session with both halves, from the page itself.
func TestWhoSeesThePage(t *testing.T) {
	r := newRig(t, true)
	for name, c := range map[string]struct {
		method, path, body string
		change             func(*http.Request)
		want               int
	}{
		"page":                       {"GET", "/", "", nil, 200},
		"script":                     {"GET", "/main.js", "", nil, 200},
		"unknown file":               {"GET", "/../../etc/passwd", "", nil, 404},
		"directory":                  {"GET", "/./", "", nil, 404},
		"post to a file":             {"POST", "/", "", nil, 405},
		"data without a session":     {"GET", "/api/container?id=web", "", nil, 401},
		"wrong token":                {"POST", "/api/login", "wrong", func(r *http.Request) { r.Header.Set(keyHeader, "login") }, 401},
		"no token":                   {"POST", "/api/login", "", func(r *http.Request) { r.Header.Set(keyHeader, "login") }, 401},
		"token without the header":   {"POST", "/api/login", token, nil, 403},
		"another host":               {"GET", "/", "", func(r *http.Request) { r.Host = "evil.example" }, 421},
		"another host with a port":   {"GET", "/", "", func(r *http.Request) { r.Host = "evil.example:80" }, 421},
		"a host that looks like one": {"GET", "/", "", func(r *http.Request) { r.Host = "127.0.0.1.evil.example" }, 421},
		"localhost":                  {"GET", "/", "", func(r *http.Request) { r.Host = "localhost:1" }, 200},
		"another origin":             {"POST", "/api/login", token, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example"); r.Header.Set(keyHeader, "login") }, 403},
		"origin null":                {"POST", "/api/login", token, func(r *http.Request) { r.Header.Set("Origin", "null"); r.Header.Set(keyHeader, "login") }, 403},
		"another port":               {"POST", "/api/login", token, func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1"); r.Header.Set(keyHeader, "login") }, 403},
		"cross site":                 {"GET", "/main.js", "", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		"a link to the page": {"GET", "/", "", func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
		}, 200},
	} {
		if resp := r.do(c.method, c.path, c.body, c.change); resp.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, resp.Status, c.want)
		}
	}
	r.login()
	if resp := r.do("GET", "/api/container?id="+ours, "", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("with a session: %s", resp.Status)
	}
	key, jar := r.key, r.jar
	r.key = ""
	if resp := r.do("GET", "/api/container?id="+ours, "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("with the cookie alone: %s", resp.Status)
	}
	r.key, r.jar = key, nil
	if resp := r.do("GET", "/api/container?id="+ours, "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("with the key alone: %s", resp.Status)
	}
	if c := jar[0]; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
		t.Errorf("the cookie is %v", c)
	}
	r.jar = jar
	r.do("POST", "/api/logout", "", nil)
	if resp := r.do("GET", "/api/container?id="+ours, "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("after logging out: %s", resp.Status)
	}
}

// TestSecurityHeaders are on every answer, errors included.
func TestSecurityHeaders(t *testing.T) {
	r := newRig(t, false)
	for _, path := range []string{"/", "/main.css", "/gone", "/api/node"} {
		h := r.do("GET", path, "", nil).Header
		csp := h.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
			if !strings.Contains(csp, part) {
				t.Errorf("%s: the policy has no %s", path, part)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %v", path, h)
		}
	}
}

// TestSessionsEnd after a time without requests, and the idlest makes room for a new one.
func TestSessionsEnd(t *testing.T) {
	var s sessions
	now := time.Now()
	id, key := s.begin(now)
	if !s.valid(id, key, now.Add(sessionTime)) || s.valid(id, key+"x", now) || s.valid("", "", now) {
		t.Error("a session is valid with both halves")
	}
	if s.valid(id, key, now.Add(2*sessionTime+time.Second)) || s.valid(id, key, now) {
		t.Error("an idle session has not ended")
	}
	first, firstKey := s.begin(now)
	for i := range maxSessions {
		s.begin(now.Add(time.Duration(i+1) * time.Second))
	}
	if s.valid(first, firstKey, now) || len(s.open) != maxSessions {
		t.Errorf("%d sessions", len(s.open))
	}
}

// TestAPageWithoutActionsOnlyReads: neither by its handlers nor by its connection.
func TestAPageWithoutActionsOnlyReads(t *testing.T) {
	r := newRig(t, false).login()
	for path, body := range map[string]string{"/api/action": `{"verb":"stop","id":"` + ours + `"}`, "/api/exec": `{"id":"` + ours + `","command":["sh"]}`} {
		if resp := r.do("POST", path, body, nil); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if got := text(t, r.do("GET", "/api/container?env=show&id="+ours, "", nil)); strings.Contains(got, "secret") {
		t.Error("it shows the environment")
	}
	if _, err := r.ui.api.containers.Stop(t.Context(), &longshorev1.StopRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the connection: %v", err)
	}
	if _, err := r.ui.api.containers.Exec(t.Context()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the connection's streams: %v", err)
	}
	if len(r.agent.stopped)+len(r.agent.execs) > 0 {
		t.Error("the agent was asked")
	}
}

// TestActionsOnOtherOwnersNeedTheirName: with it the page sends force and the name of its user.
func TestActionsOnOtherOwnersNeedTheirName(t *testing.T) {
	r := newRig(t, true).login()
	for body, want := range map[string]int{
		`{"verb":"stop","id":"` + theirs + `"}`:                 http.StatusPreconditionRequired,
		`{"verb":"stop","id":"` + theirs + `","owner":"nomad"}`: http.StatusPreconditionRequired,
		`{"verb":"stop","id":"bb"}`:                             http.StatusNotFound,
		`{"verb":"stop","id":""}`:                               http.StatusBadRequest,
		`{"verb":"remove","id":"` + ours + `"}`:                 http.StatusBadRequest,
		`{"verb":"stop","id":"` + ours + `","x":1}`:             http.StatusBadRequest,
		`[`:                            http.StatusBadRequest,
		strings.Repeat(" ", maxBody+1): http.StatusBadRequest,
	} {
		if resp := r.do("POST", "/api/action", body, nil); resp.StatusCode != want {
			t.Errorf("%.80s: %s, want %d", body, resp.Status, want)
		}
	}
	if len(r.agent.stopped) > 0 {
		t.Fatalf("stopped %v", r.agent.stopped)
	}
	for _, body := range []string{`{"verb":"stop","id":"` + ours + `"}`, `{"verb":"stop","id":"` + theirs + `","owner":"cri"}`} {
		if resp := r.do("POST", "/api/action", body, nil); resp.StatusCode != http.StatusNoContent {
			t.Errorf("%s: %s", body, resp.Status)
		}
	}
	if s := r.agent.stopped; len(s) != 2 || s[0].GetForce() || !s[1].GetForce() {
		t.Errorf("stopped %v", s)
	}
	if last := r.agent.calls[len(r.agent.calls)-1]; last != longshorev1.Containers_Stop_FullMethodName+" web page, 127.0.0.1" {
		t.Errorf("the agent got %q", last)
	}
	if got := text(t, r.do("GET", "/api/container?env=show&id="+ours, "", nil)); !strings.Contains(got, "secret") {
		t.Errorf("the environment is not shown: %s", got)
	}
	if got := text(t, r.do("GET", "/api/container?id="+ours, "", nil)); strings.Contains(got, "secret") {
		t.Error("the environment is shown without being asked for")
	}
}

// TestTheFeed sends all objects, then changes; its streams end with the last page.
func TestTheFeed(t *testing.T) {
	r := newRig(t, false).login()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp := r.do("GET", "/api/feed", "", func(req *http.Request) { *req = *req.WithContext(ctx) })
	dec := json.NewDecoder(resp.Body)
	next := func(kind string) map[string]any {
		t.Helper()
		for {
			var m map[string]any
			if err := dec.Decode(&m); err != nil {
				t.Fatalf("waiting for %s: %v", kind, err)
			}
			if m["k"] == kind {
				return m
			}
		}
	}
	if all := next("all"); len(all["set"].([]any)) != 4 {
		t.Errorf("all: %v", all)
	}
	r.agent.mu.Lock()
	r.agent.containers = []*longshorev1.Container{{Id: ours, Owner: "cli", Key: "web", State: "exited", Sandbox: "s1", Autopsy: &longshorev1.Autopsy{Verdict: "<b>", Status: 1}}}
	r.agent.mu.Unlock()
	r.agent.events <- &longshorev1.Event{Seq: 7, Kind: "container.exited", Container: ours}
	if e := next("event"); e["e"].(map[string]any)["seq"] != 7.0 {
		t.Errorf("event: %v", e)
	}
	change := next("change")
	if set := change["set"].([]any); len(set) != 1 || set[0].(map[string]any)["st"] != "exited" || !slices.Equal(change["gone"].([]any), []any{theirs}) {
		t.Errorf("change: %v", change)
	}
	r.agent.pulls <- &longshorev1.WatchPullsResponse{Pulls: []*longshorev1.Pull{{Owner: "cri", Name: "busybox"}}}
	if p := next("pulls")["p"].(map[string]any)["pulls"].([]any); len(p) != 1 || p[0].(map[string]any)["name"] != "busybox" {
		t.Errorf("pulls: %v", p)
	}
	if n := r.agent.open(); n != 4 {
		t.Errorf("%d streams for one page", n)
	}
	leave()
	deadline := time.After(30 * time.Second)
	for r.agent.open() > 0 {
		select {
		case <-deadline:
			t.Fatal("streams are open without a page")
		case <-time.After(time.Millisecond):
		}
	}
}

// TestASlowPageIsCutOff, and others are not.
func TestASlowPageIsCutOff(t *testing.T) {
	cut := false
	slow, quick := &reader{out: make(chan []byte, 1), gone: func() { cut = true }, live: true}, &reader{out: make(chan []byte, 3), gone: func() { t.Error("the quick page is cut off") }, live: true}
	w := &watch{readers: map[*reader]struct{}{slow: {}, quick: {}}}
	for range 3 {
		w.publish("x")
	}
	if !cut || len(quick.out) != 3 {
		t.Errorf("cut %v, %d messages", cut, len(quick.out))
	}
}

// TestTooManyPages are refused.
func TestTooManyPages(t *testing.T) {
	a := &agent{events: make(chan *longshorev1.Event)}
	f := feed{api: newAPI(a), log: slog.New(slog.DiscardHandler)}
	var readers []*reader
	for range maxReaders {
		w, r := f.join(func() {})
		readers = append(readers, r)
		defer f.leave(w, r)
	}
	if _, r := f.join(func() {}); r != nil || slices.Contains(readers, nil) {
		t.Error("a page too many is served")
	}
}

// TestLogsAreValidText sends bytes that are not UTF-8.
func TestLogsAreValidText(t *testing.T) {
	r := newRig(t, false).login()
	var c chunk
	if err := json.Unmarshal([]byte(text(t, r.do("GET", "/api/logs?id="+ours, "", nil))), &c); err != nil || c.Text != "<script>\uFFFD" {
		t.Errorf("%+v, %v", c, err)
	}
	for _, q := range []string{"", "id=", "id=%ff", "id=" + strings.Repeat("x", maxName+1), "id=a&tail=-1", "id=a&tail=99999999999999999999"} {
		if resp := r.do("GET", "/api/logs?"+q, "", nil); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%.20s: %s", q, resp.Status)
		}
	}
}

// TestATerminal runs a program. Only the same session may send its input.
func TestATerminal(t *testing.T) {
	r := newRig(t, true).login()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp := r.do("POST", "/api/exec", `{"id":"`+ours+`","command":["sh"],"cols":80,"rows":0}`, func(req *http.Request) { *req = *req.WithContext(ctx) })
	read := func() (byte, string) {
		t.Helper()
		head := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, head); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, head[4])
		if _, err := io.ReadFull(resp.Body, body); err != nil {
			t.Fatal(err)
		}
		return head[0], string(body)
	}
	kind, name := read()
	if kind != frameName {
		t.Fatalf("frame %d %q", kind, name)
	}
	if kind, out := read(); kind != frameOutput || out != "hi" {
		t.Errorf("frame %d %q", kind, out)
	}
	if resp := r.do("POST", "/api/exec/"+name+"/input", "ls\n", nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("input: %s", resp.Status)
	}
	if resp := r.do("POST", "/api/exec/"+name+"/size", `{"cols":100,"rows":40}`, nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("size: %s", resp.Status)
	}
	if resp := r.do("POST", "/api/exec/x/input", "ls\n", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("another terminal: %s", resp.Status)
	}
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	x := r.agent.execs
	if len(x) != 3 || x[0].GetStart().GetSize().GetRows() != 1 || x[0].GetStart().GetForce() || string(x[1].GetInput().GetStdin()) != "ls\n" || x[2].GetInput().GetResize().GetCols() != 100 {
		t.Errorf("the agent got %v", x)
	}
}

func TestGroups(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"pod default/web": {"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default"}, "job batch": {nomadLabels + "job_name": "batch"},
		"service api": {"com.docker.swarm.service.name": "api"}, "project shop": {"com.docker.compose.project": "shop"}, " ": {"x": "y"},
	} {
		if kind, name := groupOf(labels); kind+" "+name != want {
			t.Errorf("%v: %s %s, want %s", labels, kind, name, want)
		}
	}
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("token", token+"\n")
	for want, c := range map[string]Config{
		"":                      {},
		"neither host:port":     {Listen: "here", TokenFile: good},
		"not loopback":          {Listen: "0.0.0.0:1", TokenFile: good},
		"must know its users":   {Listen: "127.0.0.1:1"},
		"belong together":       {Listen: "127.0.0.1:1", TokenFile: good, Cert: "x"},
		"client_ca needs TLS":   {Listen: "127.0.0.1:1", ClientCA: "x"},
		"is not a host name":    {Listen: "/run/ui.sock", TokenFile: good, Hosts: []string{"http://x"}},
		"a token has at least":  {Listen: "/run/ui.sock", TokenFile: file("short", "x")},
		"read ui.token_file":    {Listen: "/run/ui.sock", TokenFile: filepath.Join(dir, "gone")},
		"read ui.cert and ui.k": {Listen: "[::1]:1", TokenFile: good, Cert: good, Key: good},
	} {
		err := errors.Join(c.Validate(), c.CheckFiles())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	if err := (Config{Listen: "/run/ui.sock", TokenFile: good}).Validate(); err != nil {
		t.Error(err)
	}
}
