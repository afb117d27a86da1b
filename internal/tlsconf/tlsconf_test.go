package tlsconf_test

import (
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/tlsconf"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// TestWhoIsLetIn: with an authority for clients, only those with its certificates.
func TestWhoIsLetIn(t *testing.T) {
	ours, others := tlsconftest.New(t), tlsconftest.New(t)
	cert, key := ours.Issue("node")
	for _, c := range []struct {
		clientCA string
		client   *tls.Config
		want     string // the client's name; "-" when it is refused
	}{
		{"", ours.Client(""), ""},
		{ours.File, ours.Client("ann"), "ann"},
		{ours.File, ours.Client(""), "-"},
		{ours.File, func() *tls.Config {
			conf := ours.Client("")
			conf.Certificates = others.Client("eve").Certificates
			return conf
		}(), "-"},
	} {
		conf, err := tlsconf.Files{Cert: cert, Key: key, ClientCA: c.clientCA, Prefix: "x."}.Server()
		if err != nil {
			t.Fatal(err)
		}
		a, b := net.Pipe()
		server, client := tls.Server(a, conf), tls.Client(b, c.client)
		c.client.ServerName = "127.0.0.1"
		told := make(chan error, 1)
		go func() {
			err := client.HandshakeContext(t.Context())
			_, _ = client.Read(make([]byte, 1)) // a refusal arrives after the handshake has ended for the client
			told <- err
		}()
		got := "-"
		if err := server.HandshakeContext(t.Context()); err == nil {
			got = ""
			if chains := server.ConnectionState().VerifiedChains; len(chains) > 0 {
				got = chains[0][0].Subject.CommonName
			}
		}
		if got != c.want {
			t.Errorf("with authority %q: %q came in, want %q", c.clientCA, got, c.want)
		}
		_ = errors.Join(a.Close(), b.Close())
		<-told
	}
}

func TestFilesThatAreNone(t *testing.T) {
	a := tlsconftest.New(t)
	cert, key := a.Issue("node")
	none := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		files tlsconf.Files
		want  string
	}{
		"no certificate":     {tlsconf.Files{Cert: none, Key: key}, "read x.cert and x.key: "},
		"another's key":      {tlsconf.Files{Cert: a.File, Key: key}, "read x.cert and x.key: "},
		"no authority":       {tlsconf.Files{Cert: cert, Key: key, ClientCA: none}, "read x.client_ca: "},
		"an authority's key": {tlsconf.Files{Cert: cert, Key: key, ClientCA: key}, "contains no certificate"},
	} {
		c.files.Prefix = "x."
		if _, err := c.files.Server(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
