package stream

import (
	"crypto/tls"
	"fmt"
	"net"
	"path"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/tlsconf"
)

// The keys as a message names them.
const (
	keyAddress = "face.cri.stream_address"
	keyCert    = "face.cri.stream_cert"
	keyKey     = "face.cri.stream_key"
)

// Config says where and how long clients are served.
type Config struct {
	// Address is host:port; port 0 takes a free one. A host that is not loopback
	// needs Cert and Key.
	Address string
	// Cert and Key are PEM files; "" is plain HTTP.
	Cert, Key string
	// IdleTimeout ends a connection over which nothing has gone for so long, and
	// that of a client that takes nothing for so long.
	IdleTimeout time.Duration
	// MaxStreams bounds the connections open at once; more wait.
	MaxStreams int
	// PerPeer bounds those of one address; more are refused. 0 is no bound.
	PerPeer int
	// Unauthenticated bounds those that have not shown a URL's token: for more the
	// oldest are closed.
	Unauthenticated int
}

// CheckFiles reads the files that c names as New does, and returns the first error.
func (c Config) CheckFiles() error {
	_, err := c.readFiles()
	return err
}

// readFiles reads the certificate; nil without one.
func (c Config) readFiles() (*tls.Config, error) {
	if c.Cert == "" {
		return nil, nil //nolint:nilnil // plain HTTP
	}
	return tlsconf.Files{Cert: c.Cert, Key: c.Key, Prefix: "face.cri.stream_"}.Server()
}

// Validate returns InvalidArgument for values that cannot work, and for a listener beyond this
// machine without TLS.
func (c Config) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return bad("%s %q: %v", keyAddress, c.Address, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return bad("%s %q: the port is no number up to 65535", keyAddress, c.Address)
	}
	if (c.Cert == "") != (c.Key == "") {
		return bad("%s and %s go together", keyCert, keyKey)
	}
	for key, file := range map[string]string{keyCert: c.Cert, keyKey: c.Key} {
		if file != "" && !path.IsAbs(file) {
			return bad("%s %q is not an absolute path", key, file)
		}
	}
	if c.Cert == "" && !loopback(host) {
		return bad("%s %q: a TCP listener beyond loopback needs TLS, set %s and %s", keyAddress, c.Address, keyCert, keyKey)
	}
	if c.IdleTimeout <= 0 {
		return bad("face.cri.stream_idle_timeout %s must be positive", c.IdleTimeout)
	}
	if c.MaxStreams < 1 || c.PerPeer < 0 || c.Unauthenticated < 1 {
		return bad("face.cri.max_streams %d or face.cri.max_streams_unauthenticated %d is below 1, or face.cri.max_streams_per_peer %d below 0", c.MaxStreams, c.Unauthenticated, c.PerPeer)
	}
	return nil
}

// loopback reports whether only this machine reaches host; a name could become
// anything, but for localhost.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
