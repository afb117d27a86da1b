package attack

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/connlimit/connlimittest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// dockerAttempts are those of a network client on the TCP listener of Docker's API. Pages attack from the browser of an operator, which
// has a certificate.
func dockerAttempts() []attempt {
	var all []attempt
	add := func(name string, run func(t *testing.T, w *world) result) {
		all = append(all, attempt{name: "docker: " + name, actor: networkClient, run: run})
	}
	as := func(name string, conf func(t *testing.T, w *world) *tls.Config, set func(*http.Request)) {
		add(name, func(t *testing.T, w *world) result { return w.asksDocker(t, conf(t, w), set) })
	}
	none := func(*http.Request) {}
	stranger := func(_ *testing.T, w *world) *tls.Config { return w.pki.Client("") }
	operator := func(_ *testing.T, w *world) *tls.Config { return w.pki.Client("operator") }
	as("no certificate", stranger, none)
	as("a certificate of another authority", func(t *testing.T, w *world) *tls.Config {
		conf := w.pki.Client("")
		conf.Certificates = tlsconftest.New(t).Client("operator").Certificates
		return conf
	}, none)
	as("a page whose name was rebound", operator, func(r *http.Request) { r.Host = "evil.example" })
	as("a page of another site", operator, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") })
	as("a page without a site", operator, func(r *http.Request) { r.Header.Set("Origin", "null") })
	as("a websocket of another site", operator, func(r *http.Request) {
		r.Method, r.URL.Path, r.URL.RawQuery = http.MethodGet, "/containers/none/attach/ws", "stream=1"
		r.Header.Set("Origin", "https://evil.example")
		for key, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13", "Sec-Websocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
			r.Header.Set(key, value)
		}
	})
	add("plain HTTP where TLS is", func(t *testing.T, w *world) result { return plain(t, w.docker) })
	add("TLS 1.0", func(t *testing.T, w *world) result { return oldTLS(t, w.docker) })
	add("garbage", func(t *testing.T, w *world) result { return garbage(t, w.docker) })
	add("half-open connections", func(t *testing.T, w *world) result { return w.crowdsDocker(t, connlimittest.HalfOpen()...) })
	add("requests without a certificate", func(t *testing.T, w *world) result {
		return w.crowdsDocker(t, "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	})
	return all
}

// asksDocker posts a request that needs no body, as a page can. The control is that an operator is answered.
func (w *world) asksDocker(t *testing.T, conf *tls.Config, set func(*http.Request)) result {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.docker+"/containers/prune", http.NoBody)
	if err != nil {
		return is(unmade, "%v", err)
	}
	set(r)
	resp, err := dockerClient(conf).Do(r)
	if honest := w.dockerWorks(t, roottest.Patience()); honest != nil {
		return is(reached, "an operator: %v", honest)
	}
	if err != nil {
		if strings.Contains(err.Error(), "tls:") || strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "EOF") {
			return is(refused, "%v", err)
		}
		return is(unmade, "%v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
	if resp.StatusCode < 400 {
		return is(reached, "%s %s", resp.Status, text)
	}
	return is(refused, "%s %s", resp.Status, text)
}

func dockerClient(conf *tls.Config) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
}

// dockerWorks pings the API with a certificate.
func (w *world) dockerWorks(t *testing.T, patience time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+w.docker+"/_ping", nil)
	if err != nil {
		return err
	}
	resp, err := dockerClient(w.pki.Client("operator")).Do(r)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// crowdsDocker occupies all connections; an operator must still get in.
func (w *world) crowdsDocker(t *testing.T, texts ...string) result {
	t.Helper()
	conf := w.pki.Client("")
	conf.ServerName = "127.0.0.1"
	n := open(t, w.docker, conf, texts)
	if n < flood/2 {
		return is(unmade, "%d connections were opened", n)
	}
	if err := w.dockerWorks(t, impatience); err != nil {
		return is(reached, "with %d connections open an operator gets: %v", n, err)
	}
	return is(bounded, "with %d connections opened an operator is answered", n)
}
