package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/program"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == broker.Arg {
		os.Exit(broker.Main())
	}
	os.Exit(m.Run())
}

// node is an agent and the board's process.
type node struct {
	*broker.Client
	t   *testing.T
	dir string
}

func start(t *testing.T, rules ...board.Rule) *node {
	t.Helper()
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "b")}
	n.connect(rules...)
	t.Cleanup(func() {
		if s, ok := n.Status(context.Background()); ok { // a program has a handle still
			p, err := os.FindProcess(s.PID)
			if err == nil {
				err = p.Kill()
			}
			if err != nil {
				t.Error(err)
			}
		}
		n.Close()
	})
	return n
}

// connect is a new agent's.
func (n *node) connect(rules ...board.Rule) {
	n.Client = broker.New(broker.Options{
		Dir: n.dir, Command: []string{"/proc/self/exe", broker.Arg}, Environ: weaken.Environ(), Rules: func() board.Rules { return rules }, Logger: slog.New(slog.DiscardHandler),
	})
}

// handle returns a container's handle, as its program has it.
func (n *node) handle(container string, realm board.Realm, rights board.Rights, labels map[string]string) *program.Handle {
	n.t.Helper()
	role := "client"
	if rights&board.Serve != 0 {
		role = "server"
	}
	f, err := n.Handle(n.t.Context(), broker.Want{
		Container: container, Realm: realm, Rights: rights, Labels: labels, Identity: map[string]string{role + "_owner": realm.Owner, role + "_container": container},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return n.open(f)
}

func (n *node) open(f *os.File) *program.Handle {
	n.t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = f.Close()
	if err != nil {
		n.t.Fatal(err)
	}
	h, err := program.Open(uintptr(fd))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = h.Close() })
	return h
}

func (n *node) serve(h *program.Handle, labels map[string]string) *program.Server {
	n.t.Helper()
	s, err := h.Serve(n.t.Context(), labels)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = s.Close() })
	return s
}

// say has a server tell each client a text.
func say(s *program.Server, text string) {
	go func() {
		for {
			c, err := s.AcceptConn()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
			_ = c.Close()
		}
	}()
}

func (n *node) status() broker.Status {
	n.t.Helper()
	s, ok := n.Status(n.t.Context())
	if !ok {
		n.t.Fatal("there is no board")
	}
	return s
}

// descriptors is how many the process has.
func (n *node) descriptors() int {
	n.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.status().PID))
	if err != nil {
		n.t.Skip("cannot look into the process: ", err) // it is closed to its own user
	}
	return len(list)
}

func code(err error) program.Code {
	var e *program.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// TestAThousandConnections: clients of several owners and namespaces connect by label while agents come and go. Each reaches the server
// that it means, and none is lost.
func TestAThousandConnections(t *testing.T) {
	n := start(t)
	owners, namespaces, apps := []string{"cri", "nomad", "cli"}, []string{"a", "b"}, []string{"db", "web", "queue"}
	type place struct{ owner, namespace, app string }
	var clients []*program.Handle
	var places []place
	for _, o := range owners {
		for _, ns := range namespaces {
			realm := board.Realm{Owner: o, Namespace: ns}
			for _, a := range apps {
				p := place{o, ns, a}
				say(n.serve(n.handle("s-"+o+ns+a, realm, board.Serve, map[string]string{"app": a}), nil), fmt.Sprint(p))
				clients, places = append(clients, n.handle("c-"+o+ns+a, realm, board.Connect, nil)), append(places, p)
			}
		}
	}
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- i
				return
			default:
			}
			n.Close()
			n.connect()
			if _, ok := n.Status(context.Background()); !ok {
				t.Error("a new agent does not reach the board")
			}
		}
	}()
	var all sync.WaitGroup
	for i, h := range clients {
		all.Go(func() {
			for range 1000/len(clients) + 1 {
				c, err := h.Connect(t.Context(), map[string]string{"app": places[i].app})
				if err != nil {
					t.Error(err)
					return
				}
				text, err := io.ReadAll(c)
				_ = c.Close()
				if err != nil || string(text) != fmt.Sprint(places[i]) {
					t.Errorf("%v reached %q, %v", places[i], text, err)
				}
				if c.Labels["server_owner"] != places[i].owner || c.Labels["client_owner"] != places[i].owner || c.Labels["app"] != places[i].app {
					t.Errorf("labels %v", c.Labels)
				}
			}
		})
	}
	all.Wait()
	close(stop)
	t.Logf("%d agents meanwhile", <-stopped)
	s := n.status()
	if s.Connections < 1000 || s.Handles != 2*len(clients) || s.Servers != len(clients) {
		t.Errorf("status %+v", s)
	}
	// Elsewhere there is none of this name.
	if _, err := n.handle("other", board.Realm{Owner: "cri", Namespace: "c"}, board.Connect, nil).Connect(t.Context(), map[string]string{"app": "db"}); code(err) != program.NoServer || !strings.Contains(err.Error(), `app: "db"`) {
		t.Error(err)
	}
}

// TestIdentityIsTheAgents: no request gives a handle another identity, more rights or another realm.
func TestIdentityIsTheAgents(t *testing.T) {
	n := start(t, board.Rule{Client: board.Realm{Owner: "cri", Namespace: "ops*"}, Server: board.Realm{Owner: "cri"}})
	web, ops := board.Realm{Owner: "cri", Namespace: "web"}, board.Realm{Owner: "cri", Namespace: "ops-1"}
	server := n.handle("server", web, board.Serve, map[string]string{"app": "db"})
	s := n.serve(server, nil)
	client := n.handle("client", web, board.Connect, map[string]string{"app": "db"})
	ctx := t.Context()
	for name, try := range map[string]func() error{
		"serve as another one":    func() error { _, err := server.Serve(ctx, map[string]string{"server_container": "other"}); return err },
		"another owner":           func() error { _, err := client.Connect(ctx, map[string]string{"client_owner": "nomad"}); return err },
		"another label":           func() error { _, err := client.Narrow(ctx, map[string]string{"app": "web"}); return err },
		"serve with a client's":   func() error { _, err := client.Serve(ctx, nil); return err },
		"connect with a server's": func() error { _, err := server.Connect(ctx, nil); return err },
	} {
		if err := try(); code(err) != program.NotPermitted {
			t.Errorf("%s: %v", name, err)
		}
	}
	more, err := client.Narrow(ctx, nil, program.MayServe)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = more.Close() }()
	if _, err := more.Serve(ctx, nil); code(err) != program.NotPermitted {
		t.Errorf("a right came back: %v", err)
	}
	if _, err := n.handle("stranger", board.Realm{Owner: "nomad", Namespace: "web"}, board.Connect, nil).Connect(ctx, nil); code(err) != program.NoServer {
		t.Errorf("across owners: %v", err)
	}
	// The rules open a connection, and only in that direction.
	c, err := n.handle("operator", ops, board.Connect, nil).Connect(ctx, map[string]string{"server_container": "server"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	arrived, err := s.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = arrived.Close() }()
	for k, v := range map[string]string{"client_container": "operator", "server_container": "server", "client_owner": "cri", "app": "db"} {
		if c.Labels[k] != v || arrived.Labels[k] != v {
			t.Errorf("label %s: %q and %q, want %q", k, c.Labels[k], arrived.Labels[k], v)
		}
	}
	n.serve(n.handle("ops-server", ops, board.Serve, map[string]string{"app": "ops"}), nil)
	if _, err := client.Connect(ctx, nil); err != nil { // of its own realm
		t.Error(err)
	}
	if _, err := n.handle("client-2", web, board.Connect, map[string]string{"app": "ops"}).Connect(ctx, nil); code(err) != program.NoServer {
		t.Errorf("against the rules' direction: %v", err)
	}
	_, err = n.Handle(ctx, broker.Want{Container: "x", Realm: web, Rights: board.Connect, Identity: map[string]string{"client_owner": "cri"}, Labels: map[string]string{"client_owner": "nomad"}})
	if !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("a document that forges: %v", err)
	}
}

// TestTheDeadAreGoneAtOnce: a server with a closed descriptor gets no connection, and a container's
// handles, given away or not, end with its process.
func TestTheDeadAreGoneAtOnce(t *testing.T) {
	n := start(t)
	realm, ctx := board.Realm{Owner: "cri"}, t.Context()
	client := n.handle("client", realm, board.Connect, nil)
	for range 100 {
		h := n.handle("server", realm, board.Serve, nil)
		s := n.serve(h, nil)
		if c, err := client.Connect(ctx, nil); err != nil {
			t.Fatal(err)
		} else {
			_ = c.Close()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Connect(ctx, nil); code(err) != program.NoServer {
			t.Fatalf("after its end: %v", err)
		}
		_ = h.Close()
	}
	child := exec.CommandContext(ctx, "cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	handle := n.handle("container", realm, board.Serve|board.Connect, nil)
	if got := n.status().Unbound; len(got) != 2 || got[1] != "container" {
		t.Errorf("unbound: %q", got)
	}
	if err := n.Bind(ctx, "container", child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	given, err := handle.Narrow(ctx, map[string]string{"given": "away"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = given.Close() }()
	s := n.serve(given, nil)
	c, err := client.Connect(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	arrived, err := s.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = arrived.Close() }()
	_ = stdin.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := given.Show(ctx); err == nil || code(err) != "" {
		t.Errorf("a handle is left after its container: %v", err)
	}
	if _, _, err := handle.Show(ctx); err == nil || code(err) != "" {
		t.Errorf("a handle is left after its container: %v", err)
	}
	if _, err := s.AcceptConn(); !errors.Is(err, io.EOF) {
		t.Errorf("the server: %v", err)
	}
	if _, err := client.Connect(ctx, nil); code(err) != program.NoServer {
		t.Errorf("a server is left after its container: %v", err)
	}
	// The connection is theirs.
	if _, err := io.WriteString(arrived, "x"); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	// A container that is made again under its name has handles again.
	if _, _, err := n.handle("container", realm, board.Connect, nil).Show(ctx); err != nil {
		t.Error(err)
	}
}

// TestSlowPeersHoldNobodyUp: a server that accepts nothing, clients that read nothing and send too
// much, and garbage are bounded, and others continue.
func TestSlowPeersHoldNobodyUp(t *testing.T) {
	n := start(t)
	realm, ctx := board.Realm{Owner: "cri"}, t.Context()
	say(n.serve(n.handle("good", realm, board.Serve, map[string]string{"app": "good"}), nil), "good")
	n.serve(n.handle("lazy", realm, board.Serve, map[string]string{"app": "lazy"}), nil)
	client := n.handle("client", realm, board.Connect, nil)
	before := n.descriptors()
	taken := 0
	var err error
	for err == nil && taken < 1000 {
		var c *program.Conn
		if c, err = client.Connect(ctx, map[string]string{"app": "lazy"}); err == nil {
			taken++
			_ = c.Close()
		}
	}
	if code(err) != program.Busy || taken == 0 || taken > 100 {
		t.Errorf("a server that accepts nothing got %d connections: %v", taken, err)
	}
	flood := func(message string, descriptor int) {
		t.Helper()
		f, err := n.Handle(ctx, broker.Want{Container: "flood", Realm: realm, Rights: board.Connect})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		var oob []byte
		if descriptor >= 0 {
			oob = unix.UnixRights(descriptor, descriptor, descriptor)
		}
		sent := 0
		for err == nil && sent < 5000 {
			err = unix.Sendmsg(int(f.Fd()), []byte(message), oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			sent++
		}
		if sent == 5000 {
			t.Errorf("the board took %d requests whose answers nobody reads", sent)
		}
	}
	flood(`{"op":"connect","labels":{"app":"good"}}`, -1)
	flood(`{"op":"connect","labels":{"app":"lazy"}}`, 0)
	flood(`garbage`, 0)
	flood(strings.Repeat("x", program.MaxRequest+10), -1)
	for range 20 {
		c, err := client.Connect(ctx, map[string]string{"app": "good"})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); string(text) != "good" {
			t.Errorf("%q, %v", text, err)
		}
		_ = c.Close()
	}
	roottest.Eventually(t, "the board has four handles more and no other descriptor", func() bool { return n.descriptors() <= before+4 })
	// One container cannot have all there is.
	var kept []*program.Handle
	for err = nil; err == nil && len(kept) < 1000; {
		var h *program.Handle
		if h, err = client.Narrow(ctx, nil); err == nil {
			kept = append(kept, h)
		}
	}
	if code(err) != program.Full || len(kept) > 128 {
		t.Errorf("%d handles: %v", len(kept), err)
	}
	for _, h := range kept {
		_ = h.Close()
	}
	if _, err := client.Narrow(ctx, nil); err != nil {
		t.Errorf("after they were given back: %v", err)
	}
}

// TestTheProcessIsConfinedAndEnds: it reports its confinement, and ends with its last handle.
func TestTheProcessIsConfinedAndEnds(t *testing.T) {
	n := start(t)
	f, err := n.Handle(t.Context(), broker.Want{Container: "c", Realm: board.Realm{Owner: "cri"}, Rights: board.Connect})
	if err != nil {
		t.Fatal(err)
	}
	s := n.status()
	for _, want := range []string{"seccomp", "0 capabilities", "no new privileges"} {
		if !strings.Contains(s.Confinement, want) {
			t.Errorf("%s lacks %s", s.Confinement, want)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the kernel does not say %q", want)
		}
	}
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	n.Close()
	h := n.open(f)
	if _, _, err := h.Show(t.Context()); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	roottest.Eventually(t, "the process ends", func() bool { return unix.PidfdSendSignal(fd, 0, nil, 0) != nil })
	if _, ok := n.Status(t.Context()); ok {
		t.Error("there is a process still")
	}
	if _, _, err := n.handle("d", board.Realm{}, board.Connect, nil).Show(t.Context()); err != nil {
		t.Errorf("with another process: %v", err)
	}
}

func BenchmarkConnect(b *testing.B) {
	c := broker.New(broker.Options{Dir: filepath.Join(b.TempDir(), "b"), Command: []string{"/proc/self/exe", broker.Arg}, Logger: slog.New(slog.DiscardHandler)})
	defer c.Close()
	open := func(r board.Rights) *program.Handle {
		f, err := c.Handle(b.Context(), broker.Want{Container: fmt.Sprint(r), Realm: board.Realm{Owner: "cri"}, Rights: r})
		if err != nil {
			b.Fatal(err)
		}
		h, err := program.Open(f.Fd())
		if err != nil {
			b.Fatal(err)
		}
		return h
	}
	server, client := open(board.Serve), open(board.Connect)
	defer func() { _, _ = server.Close(), client.Close() }()
	s, err := server.Serve(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	say(s, "x")
	times := make([]time.Duration, 0, b.N)
	for b.Loop() {
		began := time.Now()
		c, err := client.Connect(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(began))
		_, _ = io.ReadAll(c)
		_ = c.Close()
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
}

var _ net.Listener = (*program.Server)(nil)
