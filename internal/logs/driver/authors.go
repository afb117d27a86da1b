package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// localService is the socket of the node's own syslog service, which every program of the node may use.
const localService = "/dev/log"

// Authored is Record for authors of pods, jobs and services: they name services of the network and the node's own. Files and other
// sockets of the node belong to its operator. A driver without a service has no options.
func Authored(name string, opts, labels map[string]string, env []string) (*core.LogDriver, error) {
	d, err := authored(name, opts)
	if err != nil {
		return nil, err
	}
	if d == nil {
		return &core.LogDriver{Name: name}, nil
	}
	r, err := record(name, opts, labels, env)
	if err == nil {
		r.Foreign = d.remote
	}
	return r, err
}

// CheckAuthored is Parse for authors of pods, jobs and services.
func CheckAuthored(name string, opts map[string]string) error {
	_, err := authored(name, opts)
	return err
}

// authored returns the driver; nil is one without a service.
func authored(name string, opts map[string]string) (*Driver, error) {
	switch {
	case name == "none":
		return nil, invalid.Plainf("log driver none: the files of the log are needed")
	case name == "" && len(opts) > 0:
		return nil, invalid.Plainf("options of a log driver without its name")
	case Local(name) && len(opts) > 0:
		return nil, invalid.Plainf("log driver %s has no options here", name)
	case Local(name):
		return nil, nil
	}
	d, err := Parse(name, opts)
	if err != nil {
		return nil, err
	}
	const belongs = "belongs to the node's operator, who may name it in [logs] of the agent's configuration"
	// The name of a file is refused whether or not the address needs it.
	for _, option := range []string{"syslog-tls-ca-cert", "syslog-tls-cert", "syslog-tls-key"} {
		if opts[option] != "" {
			return nil, invalid.Plainf("log option %s: a file of the node "+belongs, option)
		}
	}
	for _, path := range d.sockets {
		if path != localService {
			return nil, invalid.Plainf("log service %s: a socket of the node other than %s "+belongs, path, localService)
		}
	}
	return d, nil
}

// Lines reads options of a driver, a line each as NAME=VALUE.
func Lines(text string) (map[string]string, error) {
	opts := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if _, twice := opts[name]; !ok || name == "" || twice {
			return nil, invalid.Plainf("%q is no option as NAME=VALUE, or is set twice", line)
		}
		opts[name] = value
	}
	return opts, nil
}

// Config is the configuration of the node's default driver.
type Config struct {
	// Driver is for containers that name none; "" is none.
	Driver string `toml:"driver"`
	// Options are those of the driver, by docker's names.
	Options map[string]string `toml:"options"`
}

// Validate checks the driver and its options. InvalidArgument.
func (c Config) Validate() error {
	switch {
	case c.Driver == "" && len(c.Options) > 0:
		return invalid.Errorf("logs.options: logs.driver names no driver")
	case c.Driver == "":
		return nil
	case Local(c.Driver):
		return invalid.Errorf("logs.driver %q is none of %s", c.Driver, Services)
	}
	if _, err := Parse(c.Driver, c.Options); err != nil {
		return invalid.Errorf("[logs]: %w", err)
	}
	return nil
}

// CheckFiles reads the files of the options.
func (c Config) CheckFiles() error {
	if c.Driver == "" {
		return nil
	}
	d, err := Parse(c.Driver, c.Options)
	if err == nil {
		err = d.CheckFiles()
	}
	if err != nil {
		return fmt.Errorf("[logs]: %w", err)
	}
	return nil
}

// Complete gives a container its driver: its own or the node's. A log without a usable form gets spare beside it. InvalidArgument.
func (c Config) Complete(cfg *core.ContainerConfig, readable bool, spare core.Sink) error {
	d := cfg.LogDriver
	if d == nil || d.Name == "" {
		if c.Driver == "" || len(cfg.IO.Sinks) == 0 {
			cfg.LogDriver = nil
			return nil
		}
		chosen, err := record(c.Driver, maps.Clone(c.Options), cfg.Labels, nil)
		if err != nil {
			return err
		}
		if d != nil {
			chosen.Image, chosen.Command = d.Image, d.Command
		}
		d = chosen
	}
	if Local(d.Name) {
		cfg.LogDriver = nil
		return nil
	}
	if len(cfg.IO.Sinks) == 0 {
		return invalid.Plainf("log driver %s needs the container's log, and it has none", d.Name)
	}
	cfg.LogDriver = d
	if readable {
		return nil
	}
	size, files, err := Size(d.Options)
	if err != nil {
		return err
	}
	if size > 0 {
		spare.MaxBytes = size
	}
	if files > 0 {
		spare.MaxFiles = int(files)
	}
	cfg.IO.Sinks = slices.Concat(cfg.IO.Sinks, []core.Sink{spare})
	return nil
}
