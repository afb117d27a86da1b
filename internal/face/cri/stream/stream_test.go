package stream

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/net/websocket"
)

// TestMain looks for leaks for longer than goleak does by itself: the SPDY library
// keeps a goroutine for a second after a connection that was cut is closed.
func TestMain(m *testing.M) {
	code := m.Run()
	var leaks error
	for range 20 {
		if leaks = goleak.Find(); leaks == nil {
			break
		}
	}
	if leaks != nil && code == 0 {
		fmt.Fprintln(os.Stderr, leaks)
		code = 1
	}
	os.Exit(code)
}

func config() Config {
	return Config{Address: "127.0.0.1:0", IdleTimeout: time.Hour, MaxStreams: 10, Unauthenticated: 10}
}

// fake is a backend of functions.
type fake struct {
	exec   func(context.Context, Request, Session) (int, error)
	attach func(context.Context, Request, Session) error
	dial   func(context.Context, string, uint16) (net.Conn, error)
}

func (f fake) Exec(ctx context.Context, r Request, s Session) (int, error) {
	return f.exec(ctx, r, s)
}

func (f fake) Attach(ctx context.Context, r Request, s Session) error { return f.attach(ctx, r, s) }

func (f fake) Dial(ctx context.Context, sb string, p uint16) (net.Conn, error) {
	return f.dial(ctx, sb, p)
}

// start runs a server; its end waits for every session.
func start(t *testing.T, cfg Config, b fake) *Server {
	t.Helper()
	s, err := New(Options{Config: cfg, Backend: b, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

// dial opens a websocket at the URL of a request.
func dial(t *testing.T, s *Server, req Request, protocol string, change ...func(*websocket.Config)) *websocket.Conn {
	t.Helper()
	address, err := s.URL(req)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme = strings.Replace(u.Scheme, "http", "ws", 1)
	cfg, err := websocket.NewConfig(u.String(), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Protocol = []string{protocol}
	for _, c := range change {
		c(cfg)
	}
	ws, err := cfg.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// rest reads the channels until the server closes.
func rest(ws *websocket.Conn) map[byte]string {
	got := map[byte]string{}
	for {
		var msg []byte
		if websocket.Message.Receive(ws, &msg) != nil {
			return got
		}
		if len(msg) > 0 {
			got[msg[0]] += string(msg[1:])
		}
	}
}

func all() Request {
	return Request{Kind: KindExec, ID: "c", Args: []string{"x"}, Stdin: true, Stdout: true, Stderr: true}
}

func TestURLsAreGoodOnceAndNotForLong(t *testing.T) {
	now := time.Now()
	k := newTickets(time.Minute, 2, func() time.Time { return now })
	first, err := k.issue(all())
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := k.redeem(first); !ok || !cmp.Equal(got, all()) {
		t.Errorf("%+v, %v", got, ok)
	}
	if _, ok := k.redeem(first); ok {
		t.Error("a token was good twice")
	}
	old, _ := k.issue(all())
	now = now.Add(30 * time.Second)
	young, _ := k.issue(all())
	if _, err := k.issue(all()); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one too many: %v", err)
	}
	now = now.Add(30 * time.Second)
	if _, ok := k.redeem(old); ok {
		t.Error("a token was good for too long")
	}
	if _, ok := k.redeem(young); !ok {
		t.Error("a young token was not good")
	}
	if _, err := k.issue(all()); err != nil {
		t.Errorf("no room: %v", err)
	}
	if old == young || len(old) < 26 {
		t.Errorf("tokens %q and %q", old, young)
	}
}

func TestListenersBeyondLoopbackNeedTLS(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:0": "", "[::1]:10010": "", "localhost:1": "", "127.9.9.9:1": "",
		"0.0.0.0:1": "needs TLS", ":1": "needs TLS", "[::]:1": "needs TLS", "node:1": "needs TLS", "10.0.0.1:0": "needs TLS",
		"127.0.0.1": "missing port", "127.0.0.1:http": "no number", "127.0.0.1:70000": "no number", "": "missing port",
	} {
		cfg := config()
		cfg.Address = address
		err := cfg.Validate()
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !errdefs.IsInvalidArgument(err)) {
			t.Errorf("%q: %v, want %q", address, err, want)
		}
		cfg.Cert, cfg.Key = "/c", "/k"
		if err := cfg.Validate(); want == "needs TLS" && err != nil {
			t.Errorf("%q with TLS: %v", address, err)
		}
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Cert = "/c" }, func(c *Config) { c.Cert, c.Key = "c", "k" }, func(c *Config) { c.IdleTimeout = 0 }, func(c *Config) { c.MaxStreams = 0 },
	} {
		cfg := config()
		change(&cfg)
		if err := cfg.Validate(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestExecOverEveryDialect(t *testing.T) {
	s := start(t, config(), fake{exec: func(_ context.Context, r Request, sess Session) (int, error) {
		if diff := cmp.Diff(all(), r); diff != "" {
			return 0, errors.New(diff)
		}
		head := make([]byte, 5)
		if _, err := io.ReadFull(sess.Stdin, head); err != nil {
			return 0, err
		}
		size := <-sess.Resize
		_, _ = fmt.Fprintf(sess.Stdout, "%s %d", head, size.Width)
		_, _ = io.WriteString(sess.Stderr, "oops")
		return 3, nil
	}})
	for _, d := range dialects() {
		if d.base64 || d.name == "" {
			continue
		}
		ws := dial(t, s, all(), d.name)
		for _, msg := range []string{"\x00he", "\x04{\"Width\":1,", "\x04\"Height\":2}{\"Width\":80,\"Height\":24}", "\x00llo"} {
			if err := websocket.Message.Send(ws, []byte(msg)); err != nil {
				t.Fatal(err)
			}
		}
		got := rest(ws)
		if (got[1] != "hello 80" && got[1] != "hello 1") || got[2] != "oops" {
			t.Errorf("%s: %q", d.name, got)
		}
		var st status
		err := json.Unmarshal([]byte(got[3]), &st)
		if d.object && (err != nil || st.Reason != "NonZeroExitCode" || st.Details.Causes[0].Message != "3") || !d.object && got[3] != (outcome{code: 3}).text() {
			t.Errorf("%s: status %q", d.name, got[3])
		}
	}
	ws := dial(t, s, all(), "v4.base64.channel.k8s.io")
	for _, msg := range []string{"0aGVsbG8=", "4eyJXaWR0aCI6ODAsIkhlaWdodCI6MjR9"} {
		if err := websocket.Message.Send(ws, msg); err != nil {
			t.Fatal(err)
		}
	}
	if got := rest(ws); got['1'] != "aGVsbG8gODA=" || got['2'] != "b29wcw==" {
		t.Errorf("base64: %q", got)
	}
}

func TestHalfCloseEndsTheInputOnly(t *testing.T) {
	s := start(t, config(), fake{exec: func(_ context.Context, _ Request, sess Session) (int, error) {
		in, err := io.ReadAll(sess.Stdin)
		_, _ = sess.Stdout.Write(in)
		return 0, err
	}})
	ws := dial(t, s, all(), "v5.channel.k8s.io")
	for _, msg := range []string{"\x00one ", "\x00two", "\xff\x00"} {
		if err := websocket.Message.Send(ws, []byte(msg)); err != nil {
			t.Fatal(err)
		}
	}
	if got := rest(ws); got[1] != "one two" || got[3] != `{"metadata":{},"status":"Success"}` {
		t.Errorf("%q", got)
	}
}

// TestAClientThatGoesEndsItsSession while it waits and while it writes.
func TestAClientThatGoesEndsItsSession(t *testing.T) {
	for name, busy := range map[string]func(context.Context, Session){
		"waiting":          func(context.Context, Session) {},
		"output not taken": func(_ context.Context, s Session) { _, _ = s.Stdout.Write(make([]byte, 64<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			joined, ended := make(chan struct{}), make(chan error, 1)
			s := start(t, config(), fake{exec: func(ctx context.Context, _ Request, sess Session) (int, error) {
				close(joined)
				busy(ctx, sess)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return 0, context.Cause(ctx)
			}})
			ws := dial(t, s, all(), "v4.channel.k8s.io")
			<-joined
			// Input that nobody reads must not hide that the client has gone.
			for range 40 {
				if err := websocket.Message.Send(ws, make([]byte, 1000)); err != nil {
					t.Fatal(err)
				}
			}
			_ = ws.Close()
			if err := <-ended; !errors.Is(err, errGone) {
				t.Errorf("ended by %v", err)
			}
		})
	}
}

func TestAnIdleConnectionIsCut(t *testing.T) {
	cfg := config()
	cfg.IdleTimeout = 20 * time.Millisecond
	ended := make(chan error, 1)
	s := start(t, cfg, fake{exec: func(ctx context.Context, _ Request, _ Session) (int, error) {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return 0, nil
	}})
	ws := dial(t, s, all(), "v5.channel.k8s.io")
	if got := rest(ws); got[3] != "" {
		t.Errorf("%q", got)
	}
	if err := <-ended; !errors.Is(err, errIdle) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("ended by %v", err)
	}
}

func TestAPanicEndsItsSessionOnly(t *testing.T) {
	s := start(t, config(), fake{exec: func(_ context.Context, r Request, _ Session) (int, error) {
		if r.ID == "bad" {
			panic("on purpose")
		}
		return 0, nil
	}})
	bad := all()
	bad.ID = "bad"
	rest(dial(t, s, bad, "v4.channel.k8s.io"))
	if got := rest(dial(t, s, all(), "v4.channel.k8s.io")); !strings.Contains(got[3], "Success") {
		t.Errorf("%q", got)
	}
}

func TestTLS(t *testing.T) {
	cfg, pool := config(), x509.NewCertPool()
	cfg.Address = "0.0.0.0:0"
	cfg.Cert, cfg.Key = certificate(t, pool)
	s := start(t, cfg, fake{exec: func(_ context.Context, _ Request, sess Session) (int, error) {
		_, _ = sess.Stdout.Write(bytes.Repeat([]byte("x"), 1<<20))
		return 0, nil
	}})
	ws := dial(t, s, all(), "v4.channel.k8s.io", func(c *websocket.Config) {
		if c.Location.Scheme != "wss" || c.Location.Hostname() != "127.0.0.1" {
			t.Errorf("URL %s", c.Location)
		}
		c.TlsConfig = &tls.Config{RootCAs: pool}
	})
	if got := rest(ws); len(got[1]) != 1<<20 || !strings.Contains(got[3], "Success") {
		t.Errorf("%d bytes, %q", len(got[1]), got[3])
	}
}

// certificate makes one for 127.0.0.1.
func certificate(t *testing.T, pool *x509.CertPool) (cert, key string) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, priv.Public(), priv)
	if err != nil {
		t.Fatal(err)
	}
	own, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(own)
	b, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: b}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert"), filepath.Join(dir, "key")
}

func TestWhatIsNoURLIsNotFound(t *testing.T) {
	s := start(t, config(), fake{})
	good, err := s.URL(all())
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]int{
		good + "/x": http.StatusNotFound, strings.Replace(good, "/exec/", "/other/", 1): http.StatusNotFound,
		good:      http.StatusBadRequest, // good, but no upgrade
		good + "": http.StatusBadRequest,
	} {
		resp, err := client.Get(path) //nolint:noctx // a test's
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
	}
}

func TestServerThatDoesNotListenHasNoURLs(t *testing.T) {
	s, err := New(Options{Config: config(), Backend: fake{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.URL(all()); !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
	if err := s.Serve(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("%v", err)
	}
	if _, err := New(Options{Config: config()}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
}

// pipes is a connection in memory with half-closes.
type pipes struct {
	net.Conn
	in  io.Reader
	out *io.PipeWriter
}

func (p pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p pipes) CloseWrite() error           { return p.out.Close() }
func (p pipes) Close() error                { return p.out.CloseWithError(net.ErrClosed) }

func TestForwardedConnectionsEndByHalves(t *testing.T) {
	toTarget, fromClient := io.Pipe()
	toClient, fromTarget := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { // answers after the input's end
		b, _ := io.ReadAll(toTarget)
		_, _ = fmt.Fprintf(fromTarget, "%d bytes", len(b))
		_ = fromTarget.Close()
	})
	var got bytes.Buffer
	client := struct {
		io.Reader
		io.Writer
	}{strings.NewReader("a question"), &got}
	join(t.Context(), pipes{in: toClient, out: fromClient}, client)
	wg.Wait()
	if got.String() != "10 bytes" {
		t.Errorf("%q", got.String())
	}
}

func FuzzPath(f *testing.F) {
	for _, p := range []string{"/exec/ABC", "/attach/", "//exec/a", "/portforward/a/b", "exec/a", "/exec/../attach/x", ""} {
		f.Add("GET", p)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		kind, token, ok := parsePath(method, path)
		if ok && (token == "" || strings.Contains(token, "/") || !strings.HasSuffix(path, string(kind)+"/"+token)) {
			t.Errorf("%q is %q and %q", path, kind, token)
		}
	})
}

func FuzzMessage(f *testing.F) {
	for i, m := range []string{"\x00data", "\xff\x00", "\xff", "", "0aGk=", "4%%%"} {
		f.Add(i, []byte(m))
	}
	f.Fuzz(func(t *testing.T, which int, msg []byte) {
		d := dialects()[uint(which)%uint(len(dialects()))]
		_, data, closes, err := d.parse(msg)
		if len(data) > len(msg) || closes && !d.close || err != nil && data != nil && !d.base64 {
			t.Errorf("%s: %q gives %q, %v, %v", d.name, msg, data, closes, err)
		}
	})
}

func FuzzSizes(f *testing.F) {
	f.Add([]byte(`{"Width":80,"Height":24}{"Width":0,"Height":1}`), 3)
	f.Add([]byte(`{"Width":{"x":1}}`), 1)
	f.Add([]byte(`}}}{`), 2)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		s := newSizes()
		for len(b) > 0 {
			n := max(1, min(len(b), cut))
			if _, err := s.Write(b[:n]); err != nil {
				return
			}
			b = b[n:]
			if len(s.text) > maxSize {
				t.Fatalf("%d bytes wait", len(s.text))
			}
		}
		select {
		case size := <-s.out:
			if size.Width == 0 || size.Height == 0 {
				t.Errorf("%+v", size)
			}
		default:
		}
	})
}

func FuzzForwardStream(f *testing.F) {
	f.Add("80", "data", "", uint32(3))
	f.Add("0", "error", "7", uint32(1))
	f.Add("65536", "data", "x", uint32(0))
	f.Fuzz(func(t *testing.T, port, kind, id string, stream uint32) {
		h := http.Header{}
		h.Set(headerPort, port)
		h.Set(headerType, kind)
		h.Set(headerRequest, id)
		n, got, _, err := parseStream(h, stream)
		if err == nil && (n == 0 || got == "") {
			t.Errorf("port %d, id %q", n, got)
		}
	})
}
