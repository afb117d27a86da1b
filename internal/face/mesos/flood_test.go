package mesos

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/connlimit/connlimittest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// TestAFloodKeepsNobodyOut: beside 1,100 half-open connections and 256 idle ones of a known client,
// another gets its answer, and an earlier session continues.
func TestAFloodKeepsNobodyOut(t *testing.T) {
	ca := tlsconftest.New(t)
	cert, key := ca.Issue("node")
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			n.Supervisor.Program("dbg", echo)
			v := visitor{t: t, authorization: opsBasic, address: n.listen(func(c *Config) {
				c.Credentials = written(t, "ops s3cret")
				if secure {
					c.Cert, c.Key = cert, key
				}
			})}
			var conf *tls.Config
			if secure {
				conf = ca.Client("")
				conf.ServerName = "127.0.0.1"
				v.tls = ca.Client("")
			}
			n.is(launchA, 200, "")
			session, err := v.does(t.Context(), "/api/v1", sessionS)
			if err != nil || session.StatusCode != http.StatusOK {
				t.Fatalf("%v, %v", session, err)
			}
			defer func() { _ = session.Body.Close() }()

			connlimittest.Flood(t, v.address, 550, conf, connlimittest.HalfOpen()...)
			for range 256 {
				idle(t, v.address, conf)
			}
			connlimittest.Flood(t, v.address, 550, conf, connlimittest.HalfOpen()...)
			began := time.Now()
			v.is("/api/v1", healthCall, 200, healthAnswer, "")
			t.Logf("answered after %s", time.Since(began))
			if _, err := session.Body.Read(make([]byte, 1)); err != nil {
				t.Errorf("the session was cut: %v", err)
			}
		})
	}
}

// idle is a connection of a known client that has its answer and stays.
func idle(t *testing.T, address string, conf *tls.Config) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if conf != nil {
		c = tls.Client(c, conf)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost: "+address+"\r\nAuthorization: "+opsBasic+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(c, 15)); err != nil || string(got) != "HTTP/1.1 200 OK" {
		t.Fatalf("an idle client got %q, %v", got, err)
	}
}
