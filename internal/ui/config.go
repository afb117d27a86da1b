package ui

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/tlsconf"
)

// Config is the [ui] section.
type Config struct {
	// Listen is host:port or the absolute path of a unix socket; "" serves no page.
	Listen string `toml:"listen"`
	// TokenFile has the token that opens the page.
	TokenFile string `toml:"token_file"`
	// Cert and Key are PEM files, which an address that is not loopback requires.
	Cert string `toml:"cert"`
	Key  string `toml:"key"`
	// ClientCA is a PEM file. Only clients with a certificate of one of its authorities are served.
	ClientCA string `toml:"client_ca"`
	// Hosts are additional host names of the page.
	Hosts []string `toml:"hosts"`
	// Actions also serves the calls that change something.
	Actions bool `toml:"actions"`
}

// DefaultConfig serves no page.
func DefaultConfig() Config { return Config{Hosts: []string{}} }

// Validate refuses a page that would serve anybody.
func (c Config) Validate() error {
	if c.Listen == "" {
		return nil
	}
	var errs []error
	if !filepath.IsAbs(c.Listen) {
		host, _, err := net.SplitHostPort(c.Listen)
		switch {
		case err != nil:
			errs = append(errs, invalid.Errorf("ui.listen %q is neither host:port nor an absolute path: %v", c.Listen, err))
		case !loopback(host) && c.Cert == "":
			errs = append(errs, invalid.Errorf("ui.listen %q: an address that is not loopback needs TLS: set ui.cert and ui.key", c.Listen))
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		errs = append(errs, invalid.Errorf("ui.cert and ui.key belong together: set both or none"))
	}
	if c.ClientCA != "" && c.Cert == "" {
		errs = append(errs, invalid.Errorf("ui.client_ca needs TLS: set ui.cert and ui.key"))
	}
	if c.ClientCA == "" && c.TokenFile == "" {
		errs = append(errs, invalid.Errorf("ui.listen %q: the page must know its users: set ui.token_file or ui.client_ca", c.Listen))
	}
	for _, h := range c.Hosts {
		if h == "" || strings.ContainsAny(h, "/:@ ") {
			errs = append(errs, invalid.Errorf("ui.hosts: %q is not a host name", h))
		}
	}
	return errors.Join(errs...)
}

// loopback reports whether only this machine can reach a host.
func loopback(host string) bool {
	if host == localhost {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

const localhost = "localhost"

// CheckFiles reads the files that c names as Secure does, and returns the first error.
func (c Config) CheckFiles() error {
	if c.Listen == "" {
		return nil
	}
	_, _, err := c.read()
	return err
}

// minToken is the length of the shortest token that a file may have, in bytes.
const minToken = 16

func (c Config) read() (conf *tls.Config, token string, err error) {
	if c.Cert != "" {
		if conf, err = (tlsconf.Files{Cert: c.Cert, Key: c.Key, ClientCA: c.ClientCA, Prefix: "ui."}).Server(); err != nil {
			return nil, "", err
		}
	}
	if c.TokenFile == "" {
		return conf, "", nil
	}
	raw, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return nil, "", fmt.Errorf("read ui.token_file: %w", err)
	}
	if token = strings.TrimSpace(string(raw)); len(token) < minToken {
		return nil, "", invalid.Errorf("read ui.token_file: %s has %d characters; a token has at least %d", c.TokenFile, len(token), minToken)
	}
	return conf, token, nil
}

// Secure puts TLS on a listener as configured, and completes the options of its server.
func (c Config) Secure(l net.Listener, o Options) (net.Listener, Options, error) {
	conf, token, err := c.read()
	if err != nil {
		return nil, o, err
	}
	o.Token, o.Certificates, o.Hosts, o.Actions = token, c.ClientCA != "", c.Hosts, c.Actions
	if l = Bound(l); conf != nil {
		l = tls.NewListener(l, conf)
	}
	return l, o, nil
}
