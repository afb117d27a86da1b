package image

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/image/trust"
	"github.com/longshore/longshore/internal/image/worker"
)

// Config is the [images] section.
type Config struct {
	// DefaultRegistry completes short names: redis becomes
	// <default_registry>/library/redis:latest when it is docker.io, otherwise
	// <default_registry>/redis:latest.
	DefaultRegistry string `toml:"default_registry"`
	// RegistryConfig lists directories with <host>/hosts.toml and _default/hosts.toml in
	// containerd's form: mirrors, CAs, client certificates, skip_verify. The first that has a
	// host is used. A registry on loopback without any of them is reached by plain HTTP.
	RegistryConfig []string `toml:"registry_config"`
	// DockerConfig is a docker config.json with auths to use. It is read at each pull; "" is none.
	DockerConfig string `toml:"docker_config"`
	// CredentialHosts are, by the host of a registry or mirror, other hosts that get its
	// credentials: token servers, and targets of redirects.
	CredentialHosts map[string][]string `toml:"credential_hosts"`
	// MaxConcurrentLayers is how many layers of one image are fetched at a time, and how many are
	// unpacked at a time over all pulls. A layer that waits for its registry is not being
	// unpacked.
	MaxConcurrentLayers int `toml:"max_concurrent_layers"`
	// StallTimeout is how long a registry may send nothing, in a Go duration.
	StallTimeout Duration `toml:"stall_timeout"`
	// MinRate is how many bytes per second a registry must send on average over half a minute; 0
	// is no limit.
	MinRate int64 `toml:"min_rate"`
	// PullTimeout ends a pull that takes longer in all; 0 is no limit.
	PullTimeout Duration `toml:"pull_timeout"`
	// ProgressTimeout ends a pull that has received or unpacked nothing for this long; 0 is no
	// limit.
	ProgressTimeout Duration `toml:"progress_timeout"`
	// Retries is how often a request is repeated after 429, 5xx or a broken
	// connection.
	Retries int `toml:"retries"`
	// MaxLayerBytes is the largest uncompressed size of a layer; 0 is no limit.
	MaxLayerBytes int64 `toml:"max_layer_bytes"`
	// MaxLayerEntries and MaxImageEntries limit the files, directories and other entries of one
	// layer, and of all new layers of an image; 0 is no limit.
	MaxLayerEntries int64 `toml:"max_layer_entries"`
	MaxImageEntries int64 `toml:"max_image_entries"`
	// MinFreeBytes of the disk stay free: pulls fail before they use them.
	MinFreeBytes int64 `toml:"min_free_bytes"`
	// MinFreeInodes of the disk stay free, if its number of inodes is fixed.
	MinFreeInodes int64 `toml:"min_free_inodes"`
	// KeepPartial is how long the content that an unfinished pull has fetched is kept for the
	// next attempt.
	KeepPartial Duration `toml:"keep_partial"`
	// WorkerIdle is how long the process that fetches and unpacks stays after its last job.
	WorkerIdle Duration `toml:"worker_idle"`
	// Policy says which images may be pulled.
	Policy trust.Config `toml:"policy"`
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

// Default returns the configuration without a file.
func Default() Config {
	return Config{
		DefaultRegistry: "docker.io",
		RegistryConfig:  []string{"/etc/longshore/certs.d", "/etc/containerd/certs.d", "/etc/docker/certs.d"},
		CredentialHosts: map[string][]string{
			"docker.io": {"auth.docker.io"}, "registry.gitlab.com": {"gitlab.com"},
		},
		MaxConcurrentLayers: 4,
		StallTimeout:        Duration(time.Minute),
		MinRate:             4 << 10,
		PullTimeout:         Duration(6 * time.Hour),
		ProgressTimeout:     Duration(5 * time.Minute),
		Retries:             4,
		MaxLayerBytes:       64 << 30,
		MaxLayerEntries:     2_000_000,
		MaxImageEntries:     4_000_000,
		MinFreeBytes:        256 << 20,
		MinFreeInodes:       10_000,
		KeepPartial:         Duration(24 * time.Hour),
		WorkerIdle:          Duration(15 * time.Second),
		Policy:              trust.Default(),
	}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("images.%s: %s: %w", key, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument))
	}
	if c.DefaultRegistry == "" || strings.ContainsAny(c.DefaultRegistry, "/ ") {
		bad("default_registry", "%q is not a registry host", c.DefaultRegistry)
	}
	for _, dir := range c.RegistryConfig {
		if !filepath.IsAbs(dir) {
			bad("registry_config", "%q is not an absolute path", dir)
		}
	}
	if c.DockerConfig != "" && !filepath.IsAbs(c.DockerConfig) {
		bad("docker_config", "%q is not an absolute path", c.DockerConfig)
	}
	if c.MaxConcurrentLayers < 1 || c.MaxConcurrentLayers > 64 {
		bad("max_concurrent_layers", "%d is not between 1 and 64", c.MaxConcurrentLayers)
	}
	if c.StallTimeout < Duration(time.Second) {
		bad("stall_timeout", "%s is less than 1s", time.Duration(c.StallTimeout))
	}
	for host, others := range c.CredentialHosts {
		for _, other := range append([]string{host}, others...) {
			if other == "" || strings.ContainsAny(other, "/ @*") {
				bad("credential_hosts", "%q is not a host or host:port", other)
			}
		}
	}
	if c.MinRate < 0 || c.PullTimeout < 0 || c.MaxLayerEntries < 0 || c.MaxImageEntries < 0 || c.MinFreeInodes < 0 {
		bad("min_rate, pull_timeout, max_layer_entries, max_image_entries, min_free_inodes", "must not be negative")
	}
	if c.Retries < 0 || c.MaxLayerBytes < 0 || c.MinFreeBytes < 0 || c.KeepPartial < 0 || c.WorkerIdle < 0 || c.ProgressTimeout < 0 {
		bad("retries, max_layer_bytes, min_free_bytes, keep_partial, worker_idle, progress_timeout", "must not be negative")
	}
	return errors.Join(append(errs, c.Policy.Validate())...)
}

func (c Config) settings(agent string) worker.Settings {
	retries := c.Retries
	if retries == 0 {
		retries = -1
	}
	return worker.Settings{
		Concurrency: c.MaxConcurrentLayers, MaxLayerBytes: c.MaxLayerBytes, MinFree: c.MinFreeBytes,
		MaxLayerEntries: c.MaxLayerEntries, MaxImageEntries: c.MaxImageEntries, MinFreeInodes: c.MinFreeInodes,
		CredentialHosts: c.CredentialHosts, MinRate: c.MinRate, Timeout: time.Duration(c.PullTimeout),
		Stall: time.Duration(c.StallTimeout), Progress: time.Duration(c.ProgressTimeout), Retries: retries, HostDirs: c.RegistryConfig, UserAgent: agent,
	}
}
