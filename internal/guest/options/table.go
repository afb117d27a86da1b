package options

import (
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/invalid"
)

// source is where an option stands.
type source int

const (
	fromCommandLine source = iota
	fromFile
	fromEnvironment
)

// policyFile is the option that names the first policy.
const policyFile = "policy_file"

// option is one of Kata's. It has apply when it is served here, and otherwise check.
type option struct {
	needs bool // a value
	apply func(o *Options, value string, given bool) error
	check func(value string, given bool) error
}

// inFiles are the names that files have for options besides those of the command line.
var inFiles = map[string]string{ //nolint:gochecknoglobals // a table
	"log_level": "log", "dev_mode": "devmode", "tracing": "trace",
}

// The kinds of options that are checked and have no effect.
var ( //nolint:gochecknoglobals // parts of a table
	flag   = option{check: func(v string, given bool) error { _, err := toBool(v, given); return err }}
	number = option{needs: true, check: func(v string, _ bool) error { _, err := toNumber(v); return err }}
	text   = option{check: func(string, bool) error { return nil }}
	port   = option{needs: true, check: func(v string, _ bool) error { _, err := toPort(v); return err }}
)

// known are Kata's options, and two of ours, control_vport and reclaim_paused.
var known = map[string]option{ //nolint:gochecknoglobals // a table
	"log": {needs: true, apply: func(o *Options, v string, _ bool) (err error) {
		o.Log, err = toLevel(v)
		return err
	}},
	"server_addr": {needs: true, apply: func(o *Options, v string, _ bool) (err error) {
		o.Listen, err = ParseAddress(v)
		return err
	}},
	"log_vport": {needs: true, apply: func(o *Options, v string, _ bool) (err error) {
		o.LogPort, err = toPort(v)
		return err
	}},
	"passfd_listener_port": {needs: true, apply: func(o *Options, v string, _ bool) (err error) {
		if v == "0" { // Kata's own default
			return nil
		}
		o.StreamPort, err = toPort(v)
		return err
	}},
	"control_vport": {needs: true, apply: func(o *Options, v string, _ bool) (err error) {
		o.ControlPort, err = toPort(v)
		return err
	}},
	"hotplug_timeout": {needs: true, apply: func(o *Options, v string, _ bool) error {
		n, err := toNumber(v)
		if err == nil && n > 0 { // Kata's agent passes over a timeout of nothing
			o.HotplugTimeout = time.Duration(min(n, maxSeconds)) * time.Second
		}
		return err
	}},
	"cdi_timeout": {needs: true, apply: func(o *Options, v string, _ bool) error {
		n, err := toNumber(v)
		if err == nil && n > 0 {
			o.CDITimeout = time.Duration(min(n, maxSeconds)) * time.Second
		}
		return err
	}},
	"visible_cdi_devices": {apply: func(o *Options, v string, given bool) (err error) {
		o.VisibleCDI, err = toBool(v, given)
		return err
	}},
	"reclaim_paused": {apply: func(o *Options, v string, given bool) (err error) {
		o.ReclaimPaused, err = toBool(v, given)
		return err
	}},
	"config_file": {needs: true, apply: func(o *Options, v string, _ bool) error {
		if !strings.HasPrefix(v, "/") {
			return invalid.Errorf("%q: an absolute path is wanted", clip(v))
		}
		o.File = v
		return nil
	}},
	policyFile: {needs: true, apply: func(o *Options, v string, _ bool) error {
		if v != "" && !strings.HasPrefix(v, "/") {
			return invalid.Errorf("%q: an absolute path is wanted", clip(v))
		}
		o.PolicyFile = v
		return nil
	}},
	"unified_cgroup_hierarchy": {apply: func(o *Options, v string, given bool) (err error) {
		o.Unified, err = toBool(v, given)
		return err
	}},

	"debug_console": flag, "devmode": flag, "trace": flag, "supports_seccomp": flag, "secure_storage_integrity": flag, "mem_agent_enable": flag,
	"debug_console_vport": port,
	"container_pipe_size": number, "cdh_api_timeout": number, "image_pull_timeout": number, "launch_process_timeout": number,
	"https_proxy": text, "no_proxy": text, "image_policy_file": text, "initdata": text,
	"guest_components_rest_api": oneOf("all", "attestation", "resource"),
	"guest_components_procs":    oneOf("none", "attestation-agent", "confidential-data-hub", "api-server-rest"),
}

// maxSeconds is the longest time that an option may ask for: a day.
const maxSeconds = 24 * 60 * 60

func oneOf(words ...string) option {
	return option{needs: true, check: func(v string, _ bool) error {
		if slices.Contains(words, v) {
			return nil
		}
		return invalid.Errorf("%q: one of %s is wanted", clip(v), strings.Join(words, ", "))
	}}
}

// toBool reads a flag, which is on when it has no value.
func toBool(v string, given bool) (bool, error) {
	switch {
	case !given:
		return true, nil
	case v == "true" || v == "1":
		return true, nil
	case v == "false" || v == "0":
		return false, nil
	}
	return false, invalid.Errorf("%q: true or false is wanted", clip(v))
}

func toNumber(v string) (uint64, error) {
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil {
		return 0, invalid.Errorf("%q: a number is wanted", clip(v))
	}
	return n, nil
}

// toPort reads a port of vsock. The highest number stands for any port, and 0 for none.
func toPort(v string) (uint32, error) {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n == 0 || n == math.MaxUint32 {
		return 0, invalid.Errorf("%q: a port from 1 to %d is wanted", clip(v), uint32(math.MaxUint32-1))
	}
	return uint32(n), nil
}

// toLevel reads a level as Kata names them. slog has fewer.
func toLevel(v string) (slog.Level, error) {
	switch v {
	case "fatal", "panic", "critical", "error":
		return slog.LevelError, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "info":
		return slog.LevelInfo, nil
	case "debug", "trace":
		return slog.LevelDebug, nil
	}
	return 0, invalid.Errorf("%q: one of fatal, panic, critical, error, warn, info, debug, trace is wanted", clip(v))
}
