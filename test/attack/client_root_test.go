package attack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/connlimit/connlimittest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
)

// clientAttempts are those of a client that can send packets to the node's ports.
func clientAttempts() []attempt {
	var all []attempt
	add := func(name string, run func(t *testing.T, w *world) result) {
		all = append(all, attempt{name: name, actor: networkClient, run: run})
	}
	mesos := func(name, body string, set func(r *http.Request)) {
		add("mesos: "+name, func(t *testing.T, w *world) result { return w.http(t, w.mesos, "/api/v1", body, set) })
	}
	const version = `{"type":"GET_VERSION"}`
	none := func(*http.Request) {}
	mesos("a call without credentials", version, none)
	mesos("a wrong secret", version, func(r *http.Request) { r.SetBasicAuth("ops", "wrong") })
	mesos("an empty secret", version, func(r *http.Request) { r.SetBasicAuth("ops", "") })
	mesos("a principal nobody knows", version, func(r *http.Request) { r.SetBasicAuth("root", "longsecret") })
	mesos("a token that nobody signed", version, func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJjaWQiOiJhIn0.")
	})
	mesos("another host's name", version, func(r *http.Request) {
		r.Host = "evil.example"
		r.SetBasicAuth("ops", "longsecret")
	})
	mesos("a page of another site", version, func(r *http.Request) {
		r.Header.Set("Origin", "https://evil.example")
		r.Header.Set("Content-Type", "text/plain")
		r.SetBasicAuth("ops", "longsecret")
	})
	mesos("a launch that its rules deny", `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"low"},"command":{"value":"id"}}}`, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		r.SetBasicAuth("low", "lowsecret")
	})
	mesos("a body too large", `{"type":"`+strings.Repeat("x", 5<<20)+`"}`, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		r.SetBasicAuth("ops", "longsecret")
	})
	mesos("headers too large", version, func(r *http.Request) { r.Header.Set("X", strings.Repeat("x", 2<<20)) })
	add("mesos: a document by GET without credentials", func(t *testing.T, w *world) result { return w.get(t, w.mesos, "/state", none) })
	add("metrics: without a token", func(t *testing.T, w *world) result { return w.get(t, w.metric, "/metrics", none) })
	add("metrics: a wrong token", func(t *testing.T, w *world) result {
		return w.get(t, w.metric, "/metrics", func(r *http.Request) { r.Header.Set("Authorization", "Bearer metricstokex") })
	})
	add("metrics: pprof without a token", func(t *testing.T, w *world) result { return w.get(t, w.metric, "/debug/pprof/heap", none) })
	for name, port := range map[string]func(*testing.T, *world) string{
		"mesos":   func(_ *testing.T, w *world) string { return w.mesos },
		"metrics": func(_ *testing.T, w *world) string { return w.metric },
		"streams": func(t *testing.T, w *world) string { return w.stream(t).Host },
	} {
		add(name+": garbage", func(t *testing.T, w *world) result { return garbage(t, port(t, w)) })
	}
	add("metrics: plain HTTP where TLS is", func(t *testing.T, w *world) result { return plain(t, w.metric) })
	add("mesos: TLS 1.0", func(t *testing.T, w *world) result { return oldTLS(t, w.mesos) })
	add("streams: a guessed token", func(t *testing.T, w *world) result { return w.guess(t) })
	add("streams: a token twice", func(t *testing.T, w *world) result { return w.twice(t) })
	add("streams: another's method", func(t *testing.T, w *world) result { return w.otherKind(t) })
	add("streams: debug pages", func(t *testing.T, w *world) result { return w.pages(t) })
	// Only one per port, chosen here, has a control: the control takes as long as an
	// honest client waits.
	controlled := func() { all[len(all)-1].weak = weaken.ConnectionRoom }
	add("mesos: half-open connections", func(t *testing.T, w *world) result { return w.crowds(t, connlimittest.HalfOpen()...) })
	controlled()
	add("mesos: idle connections", func(t *testing.T, w *world) result {
		return w.crowds(t, "GET /health HTTP/1.1\r\nHost: "+w.mesos+"\r\n\r\n")
	})
	add("mesos: bodies that do not come", func(t *testing.T, w *world) result {
		return w.crowds(t, "POST /api/v1 HTTP/1.1\r\nHost: "+w.mesos+"\r\nContent-Length: 4000000\r\nContent-Type: application/json\r\n\r\n{")
	})
	add("streams: half-open connections", func(t *testing.T, w *world) result { return w.crowdsStreams(t, connlimittest.HalfOpen()...) })
	controlled()
	add("streams: idle connections", func(t *testing.T, w *world) result { return w.crowdsStreams(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") })
	return all
}

// flood is several times the number of connections that the node's listeners accept:
// when the first ones are closed because they send nothing, waiting ones take their
// place.
const flood = 500

// impatience is how long an honest client waits while attackers occupy connections.
const impatience = 10 * time.Second

// open opens flood connections that each send one of the texts, with TLS if conf is not nil.
// They stay open until the test ends.
func open(t *testing.T, addr string, conf *tls.Config, texts []string) int {
	t.Helper()
	dialed := make(chan bool, flood)
	for i := range flood {
		text := texts[i%len(texts)]
		go func() {
			c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
			dialed <- err == nil
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			if conf != nil && text != "" && text[0] != 0x16 {
				c = tls.Client(c, conf)
			}
			_, _ = io.WriteString(c, text)
		}()
	}
	n := 0
	for range flood {
		if <-dialed {
			n++
		}
	}
	return n
}

// crowds occupies all connections of the Mesos port; an honest client must still get in.
func (w *world) crowds(t *testing.T, texts ...string) result {
	t.Helper()
	conf := w.pki.Client("")
	conf.ServerName = "127.0.0.1"
	n := open(t, w.mesos, conf, texts)
	if n < flood/2 {
		return is(unmade, "%d connections were opened", n)
	}
	if err := w.honestly(t, impatience); err != nil {
		return is(reached, "with %d connections open an honest client gets: %v", n, err)
	}
	return is(bounded, "with %d connections opened an honest client is answered", n)
}

// crowdsStreams occupies all connections of the streaming port.
func (w *world) crowdsStreams(t *testing.T, texts ...string) result {
	t.Helper()
	u := w.stream(t)
	n := open(t, u.Host, nil, texts)
	if n < flood/2 {
		return is(unmade, "%d connections were opened", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), impatience)
	defer cancel()
	if code, err := upgrade(ctx, u); err != nil || code != http.StatusSwitchingProtocols {
		return is(reached, "with %d connections open an exec gets: %d, %v", n, code, err)
	}
	return is(bounded, "with %d connections opened an exec is answered", n)
}

// outside returns an HTTP client that trusts the node's certificate.
func (w *world) outside() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: w.pki.Client(""), DisableKeepAlives: true}}
}

// http posts a body; the control is that the same port answers an honest client.
func (w *world) http(t *testing.T, addr, path, body string, set func(*http.Request)) result {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+addr+path, strings.NewReader(body))
	if err != nil {
		return is(unmade, "%v", err)
	}
	r.Header.Set("Content-Type", "application/json")
	set(r)
	return w.asked(t, r)
}

func (w *world) get(t *testing.T, addr, path string, set func(*http.Request)) result {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+path, nil)
	if err != nil {
		return is(unmade, "%v", err)
	}
	set(r)
	return w.asked(t, r)
}

func (w *world) asked(t *testing.T, r *http.Request) result {
	t.Helper()
	resp, err := w.outside().Do(r)
	if err != nil {
		if honest := w.honest(t); honest != nil {
			return is(reached, "%v; an honest client: %v", err, honest)
		}
		if strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "broken pipe") || strings.Contains(err.Error(), "EOF") {
			return is(refused, "the connection was ended: %v", err)
		}
		return is(unmade, "%v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
	if honest := w.honest(t); honest != nil {
		return is(reached, "an honest client: %v", honest)
	}
	if resp.StatusCode < 400 {
		return is(reached, "%s %s", resp.Status, text)
	}
	return is(refused, "%s %s", resp.Status, text)
}

// honest makes a valid call to each port.
func (w *world) honest(t *testing.T) error { return w.honestly(t, roottest.Patience()) }

// honestly is honest with another patience.
func (w *world) honestly(t *testing.T, patience time.Duration) error {
	t.Helper()
	client := w.outside()
	client.Timeout = patience
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.mesos+"/api/v1", strings.NewReader(`{"type":"GET_VERSION"}`))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.SetBasicAuth("ops", "longsecret")
	m, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.metric+"/metrics", nil)
	if err != nil {
		return err
	}
	m.Header.Set("Authorization", "Bearer metricstoken")
	for _, r := range []*http.Request{r, m} {
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		// The rules may deny it to ops too: only the caller's authentication matters.
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusForbidden {
			return fmt.Errorf("%s: %s", r.URL, resp.Status)
		}
	}
	return nil
}

// garbage sends bytes that are no valid protocol; the node must keep working.
func garbage(t *testing.T, addr string) result {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	junk := make([]byte, 64<<10)
	_, _ = rand.Read(junk)
	sent, _ := conn.Write(junk)
	if sent == 0 {
		return is(unmade, "nothing was sent")
	}
	answer, err := io.ReadAll(conn)
	var late net.Error
	if ok := err != nil && asNetError(err, &late); ok && late.Timeout() {
		return is(reached, "%d bytes of garbage hold a connection for 30 s", sent)
	}
	return is(refused, "%d bytes sent, %d answered, the connection is ended", sent, len(answer))
}

func asNetError(err error, to *net.Error) bool {
	n, ok := err.(net.Error) //nolint:errorlint // a read's own
	if ok {
		*to = n
	}
	return ok
}

func plain(t *testing.T, addr string) result {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return is(unmade, "%v", err)
	}
	r.Header.Set("Authorization", "Bearer metricstoken")
	resp, err := (&http.Client{}).Do(r)
	if err != nil {
		return is(refused, "%v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return is(reached, "%s", resp.Status)
	}
	return is(refused, "%s", resp.Status)
}

func oldTLS(t *testing.T, addr string) result {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err == nil {
		_ = conn.Close()
		return is(reached, "a handshake of TLS 1.0 or 1.1")
	}
	return is(refused, "%v", err)
}

// stream asks, as kubelet does, for a URL of the streaming server.
func (w *world) stream(t *testing.T) *url.URL {
	t.Helper()
	r, err := w.CRI.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: w.container(t, containerRoot).ID, Cmd: []string{"/bin/true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(r.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// upgrade asks for a websocket at a URL and returns the answer.
func upgrade(ctx context.Context, u *url.URL) (int, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n", u.RequestURI(), u.Host)
	if _, err := conn.Write(b.Bytes()); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}

// guess tries variations of a real token.
func (w *world) guess(t *testing.T) result {
	t.Helper()
	u := w.stream(t)
	at := strings.LastIndex(u.Path, "/")
	own := u.Path[at+1:]
	for i := range 200 {
		token := make([]byte, max(len(own)/2, 4))
		_, _ = rand.Read(token)
		other := *u
		other.Path = u.Path[:at+1] + hex.EncodeToString(token)
		if i == 0 {
			other.Path = u.Path[:len(u.Path)-1] + string(rune(u.Path[len(u.Path)-1]^1))
		}
		switch code, err := upgrade(t.Context(), &other); {
		case err != nil:
			return is(unmade, "%v", err)
		case code < 400:
			return is(reached, "token %d of %s: %d", i, other.Path, code)
		}
	}
	if code, err := upgrade(t.Context(), u); err != nil || code != http.StatusSwitchingProtocols {
		return is(unmade, "the real token: %d, %v", code, err)
	}
	return is(refused, "200 tokens; the real one, of %d characters, works", len(own))
}

func (w *world) twice(t *testing.T) result {
	t.Helper()
	u := w.stream(t)
	if code, err := upgrade(t.Context(), u); err != nil || code != http.StatusSwitchingProtocols {
		return is(unmade, "the first time: %d, %v", code, err)
	}
	code, err := upgrade(t.Context(), u)
	if err != nil {
		return is(unmade, "%v", err)
	}
	if code < 400 {
		return is(reached, "the second time: %d", code)
	}
	return is(refused, "the first time 101, the second %d", code)
}

// otherKind uses the token of an exec to attach.
func (w *world) otherKind(t *testing.T) result {
	t.Helper()
	u := w.stream(t)
	kind := strings.Split(strings.Trim(u.Path, "/"), "/")[0]
	other := *u
	other.Path = strings.Replace(u.Path, "/"+kind+"/", "/attach/", 1)
	if kind == "attach" || other.Path == u.Path {
		other.Path = "/attach" + u.Path
	}
	code, err := upgrade(t.Context(), &other)
	if err != nil {
		return is(unmade, "%v", err)
	}
	if code < 400 {
		return is(reached, "%s: %d", other.Path, code)
	}
	return is(refused, "%s: %d", other.Path, code)
}

func (w *world) pages(t *testing.T) result {
	t.Helper()
	host := w.stream(t).Host
	for _, page := range []string{"/", "/metrics", "/debug/pprof/", "/exec/", "/attach/../debug/pprof/", "/healthz"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+page, nil)
		if err != nil {
			return is(unmade, "%v", err)
		}
		resp, err := (&http.Client{}).Do(r)
		if err != nil {
			return is(unmade, "%v", err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 400 {
			return is(reached, "%s: %s", page, resp.Status)
		}
	}
	return is(refused, "6 pages, none is there")
}
