package ui

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
	"github.com/longshore/longshore/test/nodetest"
)

const doorToken = "a token for this test"

// visit makes requests as a browser does: the page, a login, and the node's data. It returns the last status, or the
// error of a connection that is refused.
func visit(t *testing.T, client *http.Client, base, token string) (int, error) {
	t.Helper()
	defer client.CloseIdleConnections()
	var cookies []*http.Cookie
	do := func(method, path, body, key string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Longshore-Key", key)
		for _, c := range cookies {
			req.AddCookie(c)
		}
		return client.Do(req)
	}
	resp, err := do(http.MethodGet, "/", "", "")
	if err != nil {
		return 0, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil
	}
	if resp, err = do(http.MethodPost, "/api/login", token, "login"); err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil
	}
	var answer struct{ Key string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	cookies = resp.Cookies()
	data, err := do(http.MethodGet, "/api/node", "", answer.Key)
	if err != nil {
		return 0, err
	}
	_ = data.Body.Close()
	return data.StatusCode, nil
}

// overTLS returns a client that shows a certificate, or none.
func overTLS(conf *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}
}

// TestWhoMayOpenTheAgentsPage: [ui] by TLS with a token, with certificates, with both, and on a unix socket.
func TestWhoMayOpenTheAgentsPage(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "token")
		if err := os.WriteFile(file, []byte(doorToken+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ours, others := tlsconftest.New(t), tlsconftest.New(t)
		cert, key := ours.Issue("localhost")
		withTLS := fmt.Sprintf("[ui]\nlisten = \"127.0.0.1:18021\"\ncert = %q\nkey = %q\n", cert, key)
		withToken, withCA := fmt.Sprintf("token_file = %q\n", file), fmt.Sprintf("client_ca = %q\n", ours.File)
		user, stranger, nobody := ours.Client("anna"), ours.Client(""), ours.Client("")
		stranger.Certificates = others.Client("anna").Certificates

		type visitor struct {
			name, base, token string
			conf              *tls.Config
			status            int // 0 is no connection
		}
		const https = "https://localhost:18021"
		for name, c := range map[string]struct {
			config   string
			visitors []visitor
		}{
			"token": {withTLS + withToken, []visitor{
				{"with the token", https, doorToken, nobody, 200},
				{"with a certificate alone", https, "", user, 401},
				{"with a wrong token", https, doorToken + "x", nobody, 401},
				{"without TLS", "http://localhost:18021", doorToken, nil, 400},
				{"who knows another authority", https, doorToken, others.Client("anna"), 0},
			}},
			"certificate": {withTLS + withCA, []visitor{
				{"with a certificate", https, "", user, 200},
				{"without one", https, "", nobody, 0},
				{"with a certificate of another authority", https, "", stranger, 0},
				{"without TLS", "http://localhost:18021", "", nil, 400},
			}},
			"both": {withTLS + withToken + withCA, []visitor{
				{"with both", https, doorToken, user, 200},
				{"with the certificate alone", https, "", user, 401},
				{"with the token alone", https, doorToken, nobody, 0},
			}},
		} {
			t.Run(name, func(t *testing.T) {
				n := nodetest.Start(t, nodetest.Options{Config: c.config})
				for _, v := range c.visitors {
					status, err := visit(t, overTLS(v.conf), v.base, v.token)
					if status != v.status || (err == nil) != (v.status > 0) {
						t.Errorf("a visitor %s: %d, %v; want %d", v.name, status, err, v.status)
					}
				}
				n.Stop()
			})
		}

		t.Run("socket", func(t *testing.T) {
			socket := filepath.Join(dir, "ui.sock")
			n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[ui]\nlisten = %q\n", socket) + withToken})
			if status, err := visit(t, overUnix(socket), "http://localhost", doorToken); err != nil || status != http.StatusOK {
				t.Errorf("by the socket with the token: %d, %v", status, err)
			}
			if status, err := visit(t, overUnix(socket), "http://localhost", ""); err != nil || status != http.StatusUnauthorized {
				t.Errorf("by the socket without the token: %d, %v", status, err)
			}
			info, err := os.Stat(socket)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("the socket has the mode %v and the owner %d", info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
			}
			n.Stop()
			if c, err := net.Dial("unix", socket); err == nil { //nolint:noctx // it fails at once
				_ = c.Close()
				t.Error("the socket is served after the agent's end")
			}
		})
	})
}
