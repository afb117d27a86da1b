package connlimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"golang.org/x/net/netutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWhoHasJustSentIsClosedLater: the last bytes of a client may be a call that has not begun. A
// client that only sends is closed all the same.
func TestWhoHasJustSentIsClosedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewTable(slog.New(slog.DiscardHandler)).Limit(Options{Name: "cri", Key: "face.cri.max_connections", Max: 1})
		var closed atomic.Bool
		first, err := l.Admit(t.Context(), from("10.0.0.1"), func() { closed.Store(true) })
		if err != nil {
			t.Fatal(err)
		}
		calls := func() chan error {
			admitted := make(chan error, 1)
			go func() {
				_, err := l.Admit(t.Context(), from("10.0.0.1"), func() {})
				admitted <- err
			}()
			synctest.Wait()
			return admitted
		}
		admitted := calls()
		if closed.Load() {
			t.Error("closed with a call on its way")
		}
		first.Begin()
		first.End()
		if err := <-admitted; err != nil || !closed.Load() {
			t.Errorf("%v, closed: %v", err, closed.Load())
		}
	})
}

// limited returns a limit with a clock that advances by a second per reading.
func limited(o Options) (*Limit, *bytes.Buffer) {
	var log bytes.Buffer
	l := NewTable(slog.New(slog.NewTextHandler(&log, nil))).Limit(o)
	now := time.Unix(1000, 0)
	l.now = func() time.Time { now = now.Add(time.Second); return now }
	return l, &log
}

func from(address string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(address), Port: 1} }

// crowd admits connections by name and records those that were closed.
type crowd struct {
	t      *testing.T
	limit  *Limit
	slots  map[string]*Slot
	closed []string
}

func (c *crowd) admit(name, address string) error {
	c.t.Helper()
	s, err := c.limit.Admit(c.t.Context(), from(address), func() { c.closed = append(c.closed, name) })
	c.slots[name] = s
	return err
}

func (c *crowd) wantClosed(names ...string) {
	c.t.Helper()
	if diff := cmp.Diff(names, c.closed); diff != "" {
		c.t.Errorf("closed (-want +got):\n%s", diff)
	}
}

func newCrowd(t *testing.T, o Options) (*crowd, *bytes.Buffer) {
	t.Helper()
	l, log := limited(o)
	return &crowd{t: t, limit: l, slots: map[string]*Slot{}}, log
}

func TestTheLongestIdleIsClosedFirst(t *testing.T) {
	c, log := newCrowd(t, Options{Name: "cri", Key: "face.cri.max_connections", Max: 3})
	for _, name := range []string{"a", "b", "c"} {
		if err := c.admit(name, "10.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	c.slots["a"].Begin() // it is the oldest, and has a call
	c.slots["b"].touch() // it has transferred bytes since
	if err := c.admit("d", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	c.wantClosed("c")
	for _, want := range []string{"near its limit", "idle for the longest", "key=face.cri.max_connections", "socket=cri"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, log)
		}
	}
	u := c.limit.usage()
	if u.Open != 3 || u.ClosedIdle != 1 || u.Near.IsZero() {
		t.Errorf("usage: %+v", u)
	}
}

func TestWhoHasACallIsNeverClosed(t *testing.T) {
	c, _ := newCrowd(t, Options{Max: 2})
	for _, name := range []string{"a", "b"} {
		if err := c.admit(name, "10.0.0.1"); err != nil {
			t.Fatal(err)
		}
		c.slots[name].Begin()
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	got := make(chan error, 1)
	go func() {
		_, err := c.limit.Admit(ctx, from("10.0.0.2"), func() {})
		got <- err
	}()
	cancel(cause)
	if err := <-got; !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	go func() {
		_, err := c.limit.Admit(t.Context(), from("10.0.0.2"), func() {})
		got <- err
	}()
	c.slots["a"].Release()
	c.slots["a"].Release()
	if err := <-got; err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	c.wantClosed()
}

func TestOneFloodDoesNotCloseOthers(t *testing.T) {
	c, _ := newCrowd(t, Options{Max: 100, Unauthenticated: 4})
	for _, name := range []string{"honest", "f1", "f2", "f3", "f4", "f5"} {
		address := "10.6.6.6"
		if name == "honest" {
			address = "10.0.0.1"
		}
		if err := c.admit(name, address); err != nil {
			t.Fatal(err)
		}
	}
	c.wantClosed("f1", "f2") // and not the oldest of all
	c.slots["honest"].Authenticate()
	c.slots["honest"].Authenticate()
	if u := c.limit.usage(); u.Open != 4 || u.Pending != 3 || u.ClosedUnauthenticated != 2 {
		t.Errorf("usage: %+v", u)
	}
}

func TestOnePeerHasItsShare(t *testing.T) {
	c, log := newCrowd(t, Options{Max: 100, PerPeer: 2, Unauthenticated: 10})
	for _, name := range []string{"a", "b", "c"} {
		if err := c.admit(name, "2001:db8::"+name); err != nil { // all addresses of one network are one peer
			t.Fatal(err)
		}
		if name != "a" {
			c.slots[name].Authenticate()
			c.slots[name].Begin()
		}
	}
	c.wantClosed("a")
	if err := c.admit("d", "2001:db8::d"); !errors.Is(err, ErrRefused) {
		t.Errorf("a third busy one: %v", err)
	}
	if err := c.admit("other", "2001:db8:1::1"); err != nil {
		t.Errorf("another peer: %v", err)
	}
	if !strings.Contains(log.String(), "with a call in progress on each") {
		t.Errorf("log: %s", log)
	}
}

// TestHTTPConnectionsAreKnownByTheirRequests: a server's idle connections are closed. One with a
// request in progress is not, nor is one on a socket that authenticates clients by its mode.
func TestHTTPConnectionsAreKnownByTheirRequests(t *testing.T) {
	inner, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	table := NewTable(slog.New(slog.DiscardHandler))
	limit := table.Limit(Options{Name: "x", Max: 3})
	entered, leave := make(chan struct{}), make(chan struct{})
	srv := &http.Server{ConnState: connState, ConnContext: ConnContext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			close(entered)
			<-leave
		}
		Authenticate(r.Context())
		_, _ = io.WriteString(w, "answer")
	}), ReadHeaderTimeout: time.Minute}
	l := limit.Listen(inner)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	dial := func() net.Conn {
		c, err := new(net.Dialer).DialContext(t.Context(), "unix", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ask := func(c net.Conn, path string) {
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(c net.Conn) {
		t.Helper()
		got, err := io.ReadAll(io.LimitReader(c, 15))
		if err != nil || string(got) != "HTTP/1.1 200 OK" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	busy := dial()
	ask(busy, "/long")
	<-entered
	for range 20 { // each time an idle one must be closed
		c := dial()
		ask(c, "/")
		answer(c)
	}
	close(leave)
	answer(busy)
	u := table.Usage()
	if len(u) != 1 || u[0].Open > 3 || u[0].ClosedIdle < 17 {
		t.Errorf("usage: %+v", u)
	}
}

func TestFiguresKeepTheirCounts(t *testing.T) {
	table := NewTable(slog.New(slog.DiscardHandler))
	for range 2 { // the second time as after a restart of the face
		l := table.Limit(Options{Name: "cri", Max: 1})
		for range 3 {
			if _, err := l.Admit(t.Context(), from("10.0.0.1"), func() {}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []Usage{{Options: Options{Name: "cri", Max: 1}, Open: 1, ClosedIdle: 4, Near: table.Usage()[0].Near}}
	if diff := cmp.Diff(want, table.Usage(), cmpopts.EquateApproxTime(time.Minute)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var none *Table
	if none.Usage() != nil || none.Limit(Options{Max: 1}) == nil {
		t.Error("a nil table makes no limits")
	}
}

// TestSilentConnectionsDoNotKeepAClientOut compares with a listener that only counts connections,
// where they do keep clients out: so the attack is real.
func TestSilentConnectionsDoNotKeepAClientOut(t *testing.T) {
	const most = 16
	for name, bound := range map[string]func(net.Listener) net.Listener{
		"counting": func(l net.Listener) net.Listener { return netutil.LimitListener(l, most) },
		"ours": func(l net.Listener) net.Listener {
			return NewTable(slog.New(slog.DiscardHandler)).Limit(Options{Name: "x", Max: most, Unauthenticated: most / 2}).Listen(l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			srv := &http.Server{ConnState: connState, ConnContext: ConnContext, Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Hour}
			served := make(chan struct{})
			go func() { defer close(served); _ = srv.Serve(bound(inner)) }()
			defer func() { _ = srv.Close(); <-served }()
			var flood []net.Conn
			for range most {
				c, err := new(net.Dialer).DialContext(t.Context(), "tcp", inner.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				flood = append(flood, c)
			}
			answered := make(chan error, 1)
			go func() {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+inner.Addr().String()+"/", nil)
				if err == nil {
					var resp *http.Response
					if resp, err = client.Do(req); err == nil {
						err = resp.Body.Close()
					}
				}
				answered <- err
			}()
			if name == "counting" {
				select {
				case err := <-answered:
					t.Errorf("the attack does not work: %v", err)
					return
				case <-time.After(300 * time.Millisecond):
				}
				for _, c := range flood {
					_ = c.Close()
				}
			}
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}

func connState(c net.Conn, s http.ConnState) {
	Busy(c, s == http.StateActive || s == http.StateHijacked)
}
