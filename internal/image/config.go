package image

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/image/policy"
	"github.com/longshore/longshore/internal/image/worker"
)

// Config is the [images] section.
type Config struct {
	// DefaultRegistry completes short names: redis is
	// <default_registry>/library/redis:latest when it is docker.io, else
	// <default_registry>/redis:latest.
	DefaultRegistry string `toml:"default_registry"`
	// RegistryConfig lists directories with <host>/hosts.toml and
	// _default/hosts.toml in containerd's form: mirrors, CAs, client
	// certificates, skip_verify. The first that has a host counts. A registry on
	// loopback without any is spoken to by plain HTTP.
	RegistryConfig []string `toml:"registry_config"`
	// DockerConfig is a docker config.json whose auths are used, read at each
	// pull; "" for none.
	DockerConfig string `toml:"docker_config"`
	// MaxConcurrentLayers is how many layers are fetched and unpacked at one
	// time, over all pulls.
	MaxConcurrentLayers int `toml:"max_concurrent_layers"`
	// StallTimeout is how long a registry may send nothing, in a Go duration.
	StallTimeout Duration `toml:"stall_timeout"`
	// ProgressTimeout ends a pull of which nothing has come in and nothing has been
	// unpacked for so long; 0 is never.
	ProgressTimeout Duration `toml:"progress_timeout"`
	// Retries is how often a request is repeated after 429, 5xx or a broken
	// connection.
	Retries int `toml:"retries"`
	// MaxLayerBytes is the most that one layer may have uncompressed; 0 is no
	// limit.
	MaxLayerBytes int64 `toml:"max_layer_bytes"`
	// MinFreeBytes of the disk stay free: pulls fail before they are used.
	MinFreeBytes int64 `toml:"min_free_bytes"`
	// KeepPartial is how long what an unfinished pull has fetched is kept for
	// the next try.
	KeepPartial Duration `toml:"keep_partial"`
	// WorkerIdle is how long the process that fetches and unpacks stays after
	// its last job.
	WorkerIdle Duration `toml:"worker_idle"`
	// Policy says which images may be pulled.
	Policy policy.Config `toml:"policy"`
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

// Default is the configuration that needs no file.
func Default() Config {
	return Config{
		DefaultRegistry:     "docker.io",
		RegistryConfig:      []string{"/etc/longshore/certs.d", "/etc/containerd/certs.d", "/etc/docker/certs.d"},
		MaxConcurrentLayers: 4,
		StallTimeout:        Duration(time.Minute),
		ProgressTimeout:     Duration(5 * time.Minute),
		Retries:             4,
		MaxLayerBytes:       64 << 30,
		MinFreeBytes:        256 << 20,
		KeepPartial:         Duration(24 * time.Hour),
		WorkerIdle:          Duration(15 * time.Second),
		Policy:              policy.Default(),
	}
}

// Validate says what is wrong with c, all of it.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("images.%s: %s: %w", key, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument))
	}
	if c.DefaultRegistry == "" || strings.ContainsAny(c.DefaultRegistry, "/ ") {
		bad("default_registry", "%q is no registry host", c.DefaultRegistry)
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
		Stall: time.Duration(c.StallTimeout), Progress: time.Duration(c.ProgressTimeout), Retries: retries, HostDirs: c.RegistryConfig, UserAgent: agent,
	}
}
