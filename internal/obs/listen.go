package obs

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/tlsconf"
)

// MetricsConfig says where metrics, pprof and health are served besides the
// control side's own socket.
type MetricsConfig struct {
	// Listen is host:port, or "" for nothing.
	Listen string `toml:"listen"`
	// Cert and Key are PEM files; a TCP listener needs them.
	Cert string `toml:"cert"`
	Key  string `toml:"key"`
	// ClientCA is a PEM file: only clients with a certificate of one of its
	// authorities are answered.
	ClientCA string `toml:"client_ca"`
	// TokenFile holds a bearer token that clients must send.
	TokenFile string `toml:"token_file"`
}

// DefaultMetricsConfig listens nowhere.
func DefaultMetricsConfig() MetricsConfig { return MetricsConfig{} }

// Validate refuses a listener that would answer anybody.
func (c MetricsConfig) Validate() error {
	if c.Listen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("metrics.listen %q: %w: %w", c.Listen, err, errdefs.ErrInvalidArgument)
	}
	if c.Cert == "" || c.Key == "" {
		return fmt.Errorf("metrics.listen %q: a TCP listener needs TLS, set metrics.cert and metrics.key: %w", c.Listen, errdefs.ErrInvalidArgument)
	}
	if c.ClientCA == "" && c.TokenFile == "" {
		return fmt.Errorf("metrics.listen %q: a TCP listener must know its clients, set metrics.client_ca or metrics.token_file: %w", c.Listen, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Open opens the listener and returns it with h guarded as configured. Both are
// nil when nothing is to be served.
func (c MetricsConfig) Open(ctx context.Context, h http.Handler) (net.Listener, http.Handler, error) {
	if c.Listen == "" {
		return nil, nil, nil
	}
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	conf, err := tlsconf.Files{Cert: c.Cert, Key: c.Key, ClientCA: c.ClientCA, Prefix: "metrics."}.Server()
	if err != nil {
		return nil, nil, err
	}
	if c.TokenFile != "" {
		token, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return nil, nil, fmt.Errorf("read metrics.token_file: %w", err)
		}
		text := strings.TrimSpace(string(token))
		if text == "" {
			return nil, nil, fmt.Errorf("read metrics.token_file: %s is empty: %w", c.TokenFile, errdefs.ErrInvalidArgument)
		}
		h = bearer(text, h)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on metrics.listen: %w", err)
	}
	return tls.NewListener(l, conf), h, nil
}

func bearer(token string, next http.Handler) http.Handler {
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
