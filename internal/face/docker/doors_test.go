package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// over sends a request by TCP with a client's TLS config, and returns the status and the answer. conf nil is plain HTTP.
func (r *rig) over(t *testing.T, conf *tls.Config, path, host, origin string) (int, string, error) {
	t.Helper()
	scheme := "http"
	if conf != nil {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+r.tcp+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		req.Host = host
	}
	if origin != "" {
		req.Header.Set("Origin", origin)
	}
	tr := &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// TestTCP shows that only clients with a certificate of the authority are served by TCP, under an address or a name of the listener's
// certificate, and no web page of another origin.
func TestTCP(t *testing.T) {
	r := newRig(t)
	ann := r.authority.Client("ann")
	stranger := r.authority.Client("")
	eve := r.authority.Client("")
	eve.Certificates = tlsconftest.New(t).Client("eve").Certificates
	old := r.authority.Client("ann")
	r.made(t, "web", `{"Image":"busybox"}`)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for name, c := range map[string]struct {
		conf               *tls.Config
		path, host, origin string
		want               int // 0 if the connection is refused
		text               string
	}{
		"a client with a certificate": {ann, "/version", "", "", 200, "Longshore"},
		"a name of the certificate":   {ann, "/version", "localhost:2376", "", 200, ""},
		"an address":                  {ann, "/version", "[2001:db8::1]:2376", "", 200, ""},
		"a name that was rebound":     {ann, "/version", "evil.example:2376", "", 403, `no name \"evil.example\"`},
		"no host":                     {ann, "/version", ":2376", "", 403, "no name"},
		"its own page":                {ann, "/version", "", "https://" + r.tcp, 200, ""},
		"another page":                {ann, "/version", "", "https://evil.example", 403, "another origin"},
		"another port":                {ann, "/version", "localhost:1", "https://localhost:2", 403, "another origin"},
		"a page without an origin":    {ann, "/version", "", "null", 403, "another origin"},
		"a client without one":        {stranger, "/version", "", "", 0, ""},
		"one of another authority":    {eve, "/version", "", "", 0, ""},
		"an old version of TLS":       {old, "/version", "", "", 0, ""},
		"plain HTTP":                  {nil, "/version", "", "", 400, "HTTPS server"},
		"all requests are answered":   {ann, "/containers/none/export", "", "", 404, "No such container"},
		"a websocket of another page": {ann, "/containers/none/attach/ws", "", "http://evil.example", 403, "another origin"},
		"no websocket":                {ann, "/containers/web/attach/ws", "", "", 400, "headers of a websocket"},
	} {
		t.Run(name, func(t *testing.T) {
			code, text, err := r.over(t, c.conf, c.path, c.host, c.origin)
			if code != c.want || !strings.Contains(text, c.text) || (err != nil) != (c.want == 0) {
				t.Errorf("%d %s, %v; want %d with %q", code, text, err, c.want, c.text)
			}
		})
	}
	// By TCP a client may take over a connection as on a socket, and end its input.
	r.made(t, "c", `{"Image":"busybox","Cmd":["cat"],"OpenStdin":true,"StdinOnce":true}`)
	conn, err := (&tls.Dialer{Config: ann}).DialContext(t.Context(), "tcp", r.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "POST /containers/c/attach?stream=1&stdin=1&stdout=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	head := make([]byte, len("HTTP/1.1 101"))
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 101" {
		t.Fatalf("%q, %v", head, err)
	}
	r.must(t, 204, "POST", "/containers/c/start", "", nil)
	_, _ = io.WriteString(conn, "over TLS")
	if c, ok := conn.(*tls.Conn); !ok || c.CloseWrite() != nil {
		t.Error("the input cannot be ended")
	}
	out, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(out), "\x01\x00\x00\x00\x00\x00\x00\x08over TLS") {
		t.Errorf("output %q, %v", out, err)
	}
}

// TestOriginsOnSockets shows that web pages are refused on the unix sockets too, where a proxy may lead them.
func TestOriginsOnSockets(t *testing.T) {
	r := newRig(t)
	for origin, want := range map[string]int{"": 200, "http://docker": 200, "http://evil.example": 403, "null": 403, "x": 403} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://docker/info", nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("origin %q: %s, want %d", origin, resp.Status, want)
		}
	}
}

// TestNewCertificates shows that changed files are used by the next connection, and that those of an authority that was removed are
// refused then, also for clients that had a session.
func TestNewCertificates(t *testing.T) {
	r := newRig(t)
	ann := r.authority.Client("ann")
	ann.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if code, _, err := r.over(t, ann, "/version", "", ""); code != 200 {
		t.Fatal(code, err)
	}
	other := tlsconftest.New(t)
	data, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.config.TLSClientCA, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, err := r.over(t, ann, "/version", "", ""); err == nil {
		t.Errorf("a client of the removed authority gets %d", code)
	}
	bob := r.authority.Client("")
	bob.Certificates = other.Client("bob").Certificates
	if code, _, err := r.over(t, bob, "/version", "", ""); code != 200 {
		t.Error(code, err)
	}
	if err := os.WriteFile(r.config.TLSCert, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, err := r.over(t, bob, "/version", "", ""); code != 200 { // the last ones stay
		t.Error(code, err)
	}
}

// TestNoTCPWithoutCertificates shows each refusal of a configuration that would serve strangers.
func TestNoTCPWithoutCertificates(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no client CA":  {func(c *Config) { c.TLSClientCA = "" }, "face.docker.tls_client_ca as an absolute path"},
		"no cert":       {func(c *Config) { c.TLSCert = "" }, "face.docker.tls_cert as an absolute path"},
		"no key":        {func(c *Config) { c.TLSKey = "" }, "face.docker.tls_key as an absolute path"},
		"relative":      {func(c *Config) { c.TLSKey = "key.pem" }, "face.docker.tls_key as an absolute path"},
		"no port":       {func(c *Config) { c.TCP = "0.0.0.0" }, "missing port"},
		"no file":       {func(c *Config) { c.TLSClientCA = "/none" }, "read face.docker.tls_client_ca"},
		"no connection": {func(c *Config) { c.MaxConnections = 0 }, "max_connections 0 is below 1"},
	} {
		conf := r.config
		c.change(&conf)
		err := errors.Join(conf.Validate(), conf.CheckFiles())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// systemd may pass a TCP listener under the name of a socket.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := r.face.o
	o.Config.TCP, o.Logger = "", slog.New(slog.DiscardHandler)
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Serve(ctx, fullSocket{l}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a TCP listener without certificates is served: %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}
