package mesos

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/longshore/longshore/internal/face/mesos/auth"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/tlsconf"
)

// Config is the section [face.mesos].
type Config struct {
	// Enabled runs this face.
	Enabled bool `toml:"enabled"`
	// Socket is the unix socket of the API.
	Socket string `toml:"socket"`
	// Listen is host:port of a TCP listener; "" for none.
	Listen string `toml:"listen"`
	// Cert and Key are PEM files; without them the TCP listener is plain HTTP.
	Cert string `toml:"cert"`
	Key  string `toml:"key"`
	// ClientCA is a PEM file of authorities. With it, clients need a certificate of one
	// of them. Listen requires it, Credentials or JWTSecretKey.
	ClientCA string `toml:"client_ca"`
	// Credentials is a file of principals and secrets.
	Credentials string `toml:"credentials"`
	// JWTSecretKey is a file with the key that executors' tokens are signed with.
	JWTSecretKey string `toml:"jwt_secret_key"`
	// ACLs is a file of rules for principals; without it they may do everything.
	ACLs string `toml:"acls"`
	// Hosts are further names of Listen for clients.
	Hosts []string `toml:"hosts"`
	// WorkDir has the sandboxes of containers; "" is mesos below agent.root.
	WorkDir string `toml:"work_dir"`
	// GCDelay is how long an ended container's record and sandbox are kept. 0 keeps
	// them until they are removed by a call.
	GCDelay Duration `toml:"gc_delay"`
	// DiskWatchInterval is how often the disk usage of containers with a disk limit is
	// measured; 0 does not enforce the limits.
	DiskWatchInterval Duration `toml:"disk_watch_interval"`
	// GPUs are the node's GPUs by their names of the Container Device Interface. A
	// container gets as many of them as its resources say.
	GPUs []string `toml:"gpus"`
	// MaxFetchBytes bounds the fetched files of one container, in bytes after unpacking.
	MaxFetchBytes int64 `toml:"max_fetch_bytes"`
	// FetchDirs are the directories of the host with files that a command's URIs may name. The
	// files are read as the container's user.
	FetchDirs []string `toml:"fetch_dirs"`
	// FetcherCacheBytes limits the fetcher's cache; 0 switches it off.
	FetcherCacheBytes int64 `toml:"fetcher_cache_bytes"`
	// ShowAllOwners includes the other faces' containers in the calls that show frameworks,
	// executors, tasks and containers.
	ShowAllOwners bool `toml:"show_all_owners"`
	// MaxMessageBytes limits one request, and one record of a stream.
	MaxMessageBytes int `toml:"max_message_bytes"`
	// MaxConnections limits the open connections of each listener. Above the limit the
	// longest idle connection is closed; if all have a call in flight, new connections
	// wait.
	MaxConnections int `toml:"max_connections"`
	// MaxConnectionsPerPeer limits the connections of one address on Listen; more are
	// refused. 0 means no limit.
	MaxConnectionsPerPeer int `toml:"max_connections_per_peer"`
	// MaxUnauthenticated limits the connections on Listen without an authenticated
	// request so far; above the limit the oldest is closed.
	MaxUnauthenticated int `toml:"max_unauthenticated"`
}

// DefaultConfig is the configuration of an empty file.
func DefaultConfig() Config {
	return Config{
		Socket: "/run/longshore/mesos.sock", GCDelay: Duration(week), DiskWatchInterval: Duration(15 * time.Second), MaxFetchBytes: 16 << 30, FetcherCacheBytes: 2 << 30,
		MaxMessageBytes: 4 << 20, MaxConnections: 4096, MaxConnectionsPerPeer: 1024, MaxUnauthenticated: 256,
	}
}

// Validate refuses a configuration that cannot work, and one that would serve
// unauthenticated clients over TCP. InvalidArgument.
func (c Config) Validate() error {
	switch {
	case !path.IsAbs(c.Socket):
		return invalid.Errorf("face.mesos.socket %q is not an absolute path", c.Socket)
	case c.WorkDir != "" && !path.IsAbs(c.WorkDir):
		return invalid.Errorf("face.mesos.work_dir %q is not an absolute path", c.WorkDir)
	case c.MaxMessageBytes < 1<<16 || c.MaxConnections < 1:
		return invalid.Errorf("face.mesos: max_message_bytes %d is below 64 KiB, or max_connections %d below 1", c.MaxMessageBytes, c.MaxConnections)
	case c.MaxConnectionsPerPeer < 0 || c.MaxUnauthenticated < 1:
		return invalid.Errorf("face.mesos: max_connections_per_peer %d is negative, or max_unauthenticated %d below 1", c.MaxConnectionsPerPeer, c.MaxUnauthenticated)
	case ocispec.CheckCDI(c.GPUs) != nil:
		return fmt.Errorf("face.mesos.gpus: %w", ocispec.CheckCDI(c.GPUs))
	case c.MaxFetchBytes < 0 || c.FetcherCacheBytes < 0:
		return invalid.Errorf("face.mesos: max_fetch_bytes %d or fetcher_cache_bytes %d is negative", c.MaxFetchBytes, c.FetcherCacheBytes)
	case c.GCDelay < 0 || c.DiskWatchInterval < 0:
		return invalid.Errorf("face.mesos: gc_delay %s or disk_watch_interval %s is negative", time.Duration(c.GCDelay), time.Duration(c.DiskWatchInterval))
	}
	for _, dir := range c.FetchDirs {
		if !path.IsAbs(dir) || path.Clean(dir) != dir {
			return invalid.Errorf("face.mesos.fetch_dirs: %q is not an absolute path in its shortest form", dir)
		}
	}
	if c.Listen == "" {
		return nil
	}
	return c.validateListen()
}

// validateListen checks the keys of the TCP listener.
func (c Config) validateListen() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return invalid.Errorf("face.mesos.listen %q: %v", c.Listen, err)
	}
	for key, file := range map[string]string{
		"acls": c.ACLs, "cert": c.Cert, "key": c.Key, "client_ca": c.ClientCA, "credentials": c.Credentials, "jwt_secret_key": c.JWTSecretKey,
	} {
		if file != "" && !path.IsAbs(file) {
			return invalid.Errorf("face.mesos.%s %q is not an absolute path", key, file)
		}
	}
	if (c.Cert == "") != (c.Key == "") || c.ClientCA != "" && c.Cert == "" {
		return invalid.Errorf("face.mesos.cert and face.mesos.key go together, and face.mesos.client_ca needs both")
	}
	if c.Credentials == "" && c.JWTSecretKey == "" && c.ClientCA == "" {
		return invalid.Errorf("face.mesos.listen %q: a TCP listener must know its clients, set face.mesos.credentials, face.mesos.jwt_secret_key or face.mesos.client_ca", c.Listen)
	}
	return nil
}

// listenerFiles has the content of the files of the TCP listener.
type listenerFiles struct {
	authenticator *auth.Authenticator // nil without Config.Listen
	tls           *tls.Config         // nil for plain HTTP
	rules         *auth.Rules         // nil allows everything
}

// CheckFiles reads the files that c names as New does, and returns the first error.
func (c Config) CheckFiles() error {
	_, err := c.readFiles()
	return err
}

// readFiles reads the files of the TCP listener.
func (c Config) readFiles() (f listenerFiles, err error) {
	if f.authenticator, err = c.authenticator(); err != nil {
		return f, err
	}
	if f.tls, err = c.tls(); err != nil {
		return f, err
	}
	f.rules, err = c.rules()
	return f, err
}

func (c Config) authenticator() (*auth.Authenticator, error) {
	if c.Listen == "" {
		return nil, nil //nolint:nilnil // there is no TCP listener
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, invalid.Errorf("face.mesos.listen %q: %v", c.Listen, err)
	}
	return auth.New(auth.Options{
		Credentials: c.Credentials, Tokens: c.JWTSecretKey, Certificates: c.ClientCA != "", Hosts: append(slices.Clone(c.Hosts), host),
	})
}

// tls reads the certificates; nil without.
func (c Config) tls() (*tls.Config, error) {
	if c.Listen == "" || c.Cert == "" {
		return nil, nil //nolint:nilnil // plain HTTP
	}
	return tlsconf.Files{Cert: c.Cert, Key: c.Key, ClientCA: c.ClientCA, Prefix: "face.mesos."}.Server()
}

// rules reads the file of rules; nil without one.
func (c Config) rules() (*auth.Rules, error) {
	if c.ACLs == "" {
		return nil, nil //nolint:nilnil // all is allowed
	}
	raw, err := os.ReadFile(c.ACLs)
	if err != nil {
		return nil, fmt.Errorf("read face.mesos.acls: %w", err)
	}
	r, err := auth.ParseRules(raw, uidOf)
	if err != nil {
		return nil, fmt.Errorf("face.mesos.acls %s: %w", c.ACLs, err)
	}
	return r, nil
}

// uidOf returns the uid of a user of this node.
func uidOf(name string) (uint32, bool) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, false
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(uid), err == nil
}
