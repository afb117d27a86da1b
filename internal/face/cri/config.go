package cri

import (
	"path"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/invalid"
)

// Config is the section [face.cri].
type Config struct {
	// Enabled runs this face.
	Enabled bool `toml:"enabled"`
	// Socket is the unix socket of RuntimeService and ImageService.
	Socket string `toml:"socket"`
	// ImageSocket is a further socket for clients that look for ImageService
	// elsewhere; "" is none.
	ImageSocket string `toml:"image_socket"`
	// Handlers maps a RuntimeClass handler to a configured runtime. A runtime's
	// own name is a handler too.
	Handlers map[string]string `toml:"handlers"`
	// PrivilegedWithoutHostDevices are handlers: their privileged containers get the requested
	// devices and not all of the node's; "" is the default runtime.
	PrivilegedWithoutHostDevices []string `toml:"privileged_without_host_devices"`
	// CgroupDriver is kubelet's cgroup driver, as RuntimeConfig reports it: cgroupfs or systemd.
	CgroupDriver string `toml:"cgroup_driver"`
	// SandboxCgroup is the cgroup parent of pods that name none; "" is the
	// agent's own tree.
	SandboxCgroup string `toml:"sandbox_cgroup"`
	// NRISocket is where plugins of the Node Resource Interface connect; "" has
	// none.
	NRISocket string `toml:"nri_socket"`
	// CreateMountSources makes a directory where a mount's host path is missing,
	// as containerd and CRI-O do and manifests rely on; without it that is an
	// error, as the API says.
	CreateMountSources bool `toml:"create_mount_sources"`
	// SELinux gives each pod categories of its own and labels its containers and their files. It needs
	// a policy with the types of containers.
	SELinux bool `toml:"selinux"`
	// PinnedImages are patterns of full names with tag, * within a part; images with such a name
	// are reported as pinned, so that kubelet does not collect them.
	PinnedImages []string `toml:"pinned_images"`
	// LogMaxBytes starts a new log file when the next write would pass it; 0
	// leaves rotation to kubelet.
	LogMaxBytes int64 `toml:"log_max_bytes"`
	// LogMaxFiles is how many log files stay when LogMaxBytes is set.
	LogMaxFiles int `toml:"log_max_files"`
	// StreamAddress is host:port of the server for the URLs of Exec, Attach and PortForward; port 0
	// takes a free one. A URL authorizes its holder, once and within a minute. A host that is not
	// loopback needs StreamCert and StreamKey, PEM files.
	StreamAddress string `toml:"stream_address"`
	StreamCert    string `toml:"stream_cert"`
	StreamKey     string `toml:"stream_key"`
	// StreamIdleTimeout ends a stream over which nothing has gone for so long.
	StreamIdleTimeout Duration `toml:"stream_idle_timeout"`
	// MaxStreams bounds the streams open at once; more wait. MaxStreamsPerPeer bounds those of one
	// address, and MaxStreamsUnauthenticated the connections that have not shown a URL's token yet;
	// the oldest of these are closed for new ones.
	MaxStreams                int `toml:"max_streams"`
	MaxStreamsPerPeer         int `toml:"max_streams_per_peer"`
	MaxStreamsUnauthenticated int `toml:"max_streams_unauthenticated"`
	// MaxMessageBytes bounds one request and one answer.
	MaxMessageBytes int `toml:"max_message_bytes"`
	// MaxConnections bounds open connections. For more the idle ones are closed, the
	// longest idle first; when all have a call in flight, more wait.
	MaxConnections int `toml:"max_connections"`
	// MaxCalls bounds the calls in flight of one connection; more wait.
	MaxCalls uint32 `toml:"max_calls"`
	// Alpha is the API of 2017 on the same sockets.
	Alpha Alpha `toml:"alpha"`
}

// Alpha is the section [face.cri.alpha].
type Alpha struct {
	// Enabled serves the CRI of 2017 beside v1.
	Enabled bool `toml:"enabled"`
	// RootDirectory is the directory below which the host paths of mounts and log directories are;
	// links on the way never lead out of it.
	RootDirectory string `toml:"root_directory"`
	// ImageDirectory has programs by their digest; "" is programs below agent.root.
	ImageDirectory string `toml:"image_directory"`
}

// Duration is a time.Duration that is written "30s" in TOML.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Limits of the default config.
const (
	defaultMessageBytes = 32 << 20
	defaultConnections  = 4096
	defaultCalls        = 1024
	defaultStreams      = 2048
	defaultPeerStreams  = 1024
	defaultUnauthorized = 128
	defaultIdle         = 4 * time.Hour // as kubelet's own
)

// DefaultConfig has the defaults of the configuration file.
func DefaultConfig() Config {
	return Config{
		Enabled:      true,
		Socket:       "/run/longshore/cri.sock",
		Handlers:     map[string]string{},
		CgroupDriver: "cgroupfs",

		CreateMountSources: true,

		LogMaxFiles:       5,
		StreamAddress:     "127.0.0.1:0",
		StreamIdleTimeout: Duration(defaultIdle),
		MaxStreams:        defaultStreams,
		MaxStreamsPerPeer: defaultPeerStreams,
		MaxMessageBytes:   defaultMessageBytes,
		MaxConnections:    defaultConnections,
		MaxCalls:          defaultCalls,

		MaxStreamsUnauthenticated:    defaultUnauthorized,
		PrivilegedWithoutHostDevices: []string{},
		PinnedImages:                 []string{},
		Alpha:                        Alpha{RootDirectory: "/"},
	}
}

// Validate returns InvalidArgument for values that cannot work.
func (c Config) Validate() error {
	for key, p := range map[string]string{"socket": c.Socket, "image_socket": c.ImageSocket, "nri_socket": c.NRISocket} {
		if p != "" && !path.IsAbs(p) {
			return invalid.Errorf("face.cri.%s %q is not an absolute path", key, p)
		}
	}
	if c.Socket == "" && c.Enabled {
		return invalid.Errorf("face.cri.socket is empty")
	}
	for key, p := range map[string]string{"root_directory": c.Alpha.RootDirectory, "image_directory": c.Alpha.ImageDirectory} {
		if !path.IsAbs(p) && (p != "" || key == "root_directory" && c.Alpha.Enabled) {
			return invalid.Errorf("face.cri.alpha.%s %q is not an absolute path", key, p)
		}
	}
	if c.ImageSocket != "" && c.ImageSocket == c.Socket {
		return invalid.Errorf("face.cri.image_socket is face.cri.socket; leave it empty")
	}
	if c.CgroupDriver != "cgroupfs" && c.CgroupDriver != "systemd" {
		return invalid.Errorf("face.cri.cgroup_driver %q is neither cgroupfs nor systemd", c.CgroupDriver)
	}
	for handler, runtime := range c.Handlers {
		if strings.TrimSpace(handler) == "" || runtime == "" {
			return invalid.Errorf("face.cri.handlers: %q = %q: neither may be empty", handler, runtime)
		}
	}
	for _, pattern := range c.PinnedImages {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return invalid.Errorf("face.cri.pinned_images: %q is not a pattern", pattern)
		}
	}
	if c.LogMaxBytes < 0 || c.LogMaxFiles < 0 {
		return invalid.Errorf("face.cri.log_max_bytes and log_max_files must not be negative")
	}
	// kubelet and crictl send and take 16 MiB.
	if c.MaxMessageBytes < 16<<20 {
		return invalid.Errorf("face.cri.max_message_bytes %d is less than the 16 MiB that kubelet may send", c.MaxMessageBytes)
	}
	if c.MaxConnections < 1 || c.MaxCalls < 1 {
		return invalid.Errorf("face.cri.max_connections and max_calls must be at least 1")
	}
	return c.streams().Validate()
}

// CheckFiles reads the files that c names as New does, and returns the first error.
func (c Config) CheckFiles() error { return c.streams().CheckFiles() }

// streams is the streaming server's part of the config.
func (c Config) streams() stream.Config {
	return stream.Config{
		Address: c.StreamAddress, Cert: c.StreamCert, Key: c.StreamKey, IdleTimeout: time.Duration(c.StreamIdleTimeout),
		MaxStreams: c.MaxStreams, PerPeer: c.MaxStreamsPerPeer, Unauthenticated: c.MaxStreamsUnauthenticated,
	}
}

// runtimeOf is the engine's name for a RuntimeClass handler.
func (c Config) runtimeOf(handler string) string {
	if r, ok := c.Handlers[handler]; ok {
		return r
	}
	if c.ofWasm(handler) {
		return "" // its containers choose
	}
	return handler
}
