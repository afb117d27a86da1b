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

	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/tlsconf"
)

// MetricsConfig says where metrics, pprof and health are served besides the control API's own
// socket.
type MetricsConfig struct {
	// Listen is host:port, or "" for none.
	Listen string `toml:"listen"`
	// Cert and Key are PEM files, which a TCP listener requires.
	Cert string `toml:"cert"`
	Key  string `toml:"key"`
	// ClientCA is a PEM file. Only clients with a certificate of one of its authorities are
	// served.
	ClientCA string `toml:"client_ca"`
	// TokenFile holds a bearer token that clients must send.
	TokenFile string `toml:"token_file"`
	// Cadvisor also serves the metrics of Kubernetes' pods and containers, at /metrics/cadvisor.
	Cadvisor bool `toml:"cadvisor"`
}

// DefaultMetricsConfig has no listener.
func DefaultMetricsConfig() MetricsConfig { return MetricsConfig{Cadvisor: true} }

// Validate refuses a listener that would serve anybody.
func (c MetricsConfig) Validate() error {
	if c.Listen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("metrics.listen %q: %w: %w", c.Listen, err, errdefs.ErrInvalidArgument)
	}
	if c.Cert == "" || c.Key == "" {
		return fmt.Errorf("metrics.listen %q: a TCP listener needs TLS: set metrics.cert and metrics.key: %w", c.Listen, errdefs.ErrInvalidArgument)
	}
	if c.ClientCA == "" && c.TokenFile == "" {
		return fmt.Errorf("metrics.listen %q: a TCP listener must authenticate its clients: set metrics.client_ca or metrics.token_file: %w", c.Listen, errdefs.ErrInvalidArgument)
	}
	return nil
}

// CheckFiles reads the files that c names as Open does, and returns the first error.
func (c MetricsConfig) CheckFiles() error {
	if c.Listen == "" {
		return nil
	}
	_, _, err := c.readFiles()
	return err
}

// readFiles reads the files of a listener; token is "" when none is required.
func (c MetricsConfig) readFiles() (conf *tls.Config, token string, err error) {
	conf, err = tlsconf.Files{Cert: c.Cert, Key: c.Key, ClientCA: c.ClientCA, Prefix: "metrics."}.Server()
	if err != nil || c.TokenFile == "" {
		return conf, "", err
	}
	raw, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return nil, "", fmt.Errorf("read metrics.token_file: %w", err)
	}
	if token = strings.TrimSpace(string(raw)); token == "" {
		return nil, "", fmt.Errorf("read metrics.token_file: %s is empty: %w", c.TokenFile, errdefs.ErrInvalidArgument)
	}
	return conf, token, nil
}

// Open opens the listener and returns it with h behind the configured authentication. Both are
// nil when no listener is configured.
func (c MetricsConfig) Open(ctx context.Context, h http.Handler) (net.Listener, http.Handler, error) {
	if c.Listen == "" {
		return nil, nil, nil
	}
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	conf, token, err := c.readFiles()
	if err != nil {
		return nil, nil, err
	}
	if token != "" {
		h = bearer(token, h)
	}
	l, err := handover.Listen(ctx, "metrics "+c.Listen, func() (net.Listener, error) { return new(net.ListenConfig).Listen(ctx, "tcp", c.Listen) })
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
			http.Error(w, "a valid bearer token is required", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
