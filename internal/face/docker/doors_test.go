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
	"slices"
	"strings"
	"sync"
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

// raw sends bytes to a socket and returns the answer until the server closes the connection or is silent.
func raw(t *testing.T, socket, request string) string {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err == nil {
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, request)
	}
	if err != nil {
		t.Error(err)
		return ""
	}
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // an answer that keeps the connection has no end
	out, _ := io.ReadAll(conn)
	return string(out)
}

// TestAttacksOnTheReadSocket sends requests in each spelling that HTTP has, with headers that override methods, upgrades and smuggled
// requests: none does more than list and inspect, and none takes over the connection.
func TestAttacksOnTheReadSocket(t *testing.T) {
	r := newRig(t)
	r.made(t, "web", `{"Image":"busybox","Env":["SECRET=planted"]}`)
	r.must(t, 204, "POST", "/containers/web/start", "", nil)
	end := " HTTP/1.1\r\nHost: d\r\n"
	socket := "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	attacks := []string{
		"GET /containers/web/attach/ws?stream=1" + end + socket,
		"GET /v1.27/containers/web/attach/ws?stream=1" + end + socket,
		"GET /containers/web/json" + end + socket,
		"POST /containers/web/attach?stream=1" + end + "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
		"GET /events" + end + "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
		"POST /session" + end + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"POST /grpc" + end + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"GET /_ping" + end + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"CONNECT web:80 HTTP/1.1\r\nHost: web:80\r\n\r\n",
	}
	for _, path := range []string{
		"/containers/web/archive?path=/", "/containers/web/%61rchive?path=/", "/containers/web/json/%2e%2e/archive?path=/", "/containers/web/json/../archive?path=/",
		"//containers/web/archive?path=/", "/v1.51//containers/web/archive?path=/", "/./containers/web/archive?path=/", "/containers/web/archive/?path=/",
		"/containers/web%2Farchive?path=/", "/containers%2Fweb%2Farchive?path=/", "/containers/%2Fweb/archive?path=/", "/containers/web/archive%3Fpath=/",
		"/containers/web/archive;/json?path=/", "/containers/web/archive%00/json?path=/", "/containers/web/archive#/json", "http://d/containers/web/archive?path=/",
		"/containers/web/logs?stdout=1", "/containers/web/export", "/images/get?names=busybox", "/images/busybox/get", "/v1.24/images/busybox/get", "/containers/web/changes",
		"/distribution/busybox/json", "/exec/x/json", "/containers/web/json%2Farchive?path=/", "/containers/web/archive/json/?path=/",
	} {
		attacks = append(attacks, "GET "+path+end+"\r\n", "HEAD "+path+end+"\r\n")
	}
	for _, path := range []string{"/containers/web/kill", "/containers/web/json", "/containers/web/stop", "/containers/json"} {
		for _, line := range []string{"POST " + path, "post " + path, "PATCH " + path, "PUT " + path, "DELETE " + path, "GET " + strings.Replace(path, "/json", "/kill", 1)} {
			attacks = append(attacks, line+end+"X-HTTP-Method-Override: POST\r\nX-Method-Override: POST\r\nContent-Length: 0\r\n\r\n")
		}
	}
	kill := "POST /containers/web/kill" + end + "Content-Length: 0\r\n\r\n"
	attacks = append(attacks,
		"GET /_ping"+end+fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", len(kill)+5)+kill,
		"GET /_ping"+end+fmt.Sprintf("Content-Length: %d\r\nContent-Length: 0\r\n\r\n", len(kill))+kill,
		"GET /_ping"+end+"Transfer-Encoding: xchunked\r\n\r\n"+kill,
		"GET /_ping"+end+" X: y\r\n\r\n"+kill,
		"HEAD /_ping"+end+"\r\n"+kill,
		"GET /_ping"+end+"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n"+kill,
	)
	allowed := []string{"GET /_ping", "HEAD /_ping", "GET /events", "GET /containers/web/json" + end}
	var all sync.WaitGroup
	for _, request := range attacks {
		all.Go(func() {
			answer := raw(t, r.socket+"-read", request)
			if strings.Contains(answer, " 101 ") || strings.Contains(answer, "x-tar") || strings.Contains(answer, "planted") || strings.Contains(answer, "HTTP/1.1 204") {
				t.Errorf("%q: %q", request, answer)
			}
			isAllowed := slices.ContainsFunc(allowed, func(begin string) bool { return strings.HasPrefix(request, begin) })
			if strings.HasPrefix(answer, "HTTP/1.1 200") && !isAllowed {
				t.Errorf("%q is answered: %q", request, answer)
			}
		})
	}
	all.Wait()
	var d document
	r.must(t, 200, "GET", "/containers/web/json", "", &d)
	if !d.State.Running {
		t.Errorf("the container's state is %+v", d.State)
	}
}
