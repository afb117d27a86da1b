package translate

import (
	"path"
	"slices"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// The values of a request for systemd; "" is the same as systemdFound.
const (
	systemdNever  = "false"
	systemdFound  = "true"
	systemdAlways = "always"
)

// haltSignal makes systemd stop its units and end.
const haltSignal = "SIGRTMIN+3"

// systemdNeeds returns an error if the request has options that systemd cannot work with.
func systemdNeeds(req *longshorev1.CreateRequest) error {
	_, joins := JoinedContainer(req.GetPid())
	for _, o := range []struct {
		option string
		set    bool
	}{
		{"the pid namespace of another container", joins},
		{"an init (--init)", req.GetInit()},
		{"pid host", req.GetPid() == "host"},
		{"cgroupns host", req.GetCgroupns() == "host"},
	} {
		if o.set {
			return invalid.Errorf("systemd as the first process cannot be combined with %s: omit that, or set systemd to false", o.option)
		}
	}
	return nil
}

// checkSystemd refuses an unknown value, and options that conflict with it.
func checkSystemd(req *longshorev1.CreateRequest) error {
	switch req.GetSystemd() {
	case "", systemdNever, systemdFound:
		return nil
	case systemdAlways:
		return systemdNeeds(req)
	}
	return invalid.Errorf("systemd %q is none of true, false and always", req.GetSystemd())
}

// isSystemd reports whether the container is prepared for systemd. With the value true that depends on its command, as
// podman decides it.
func isSystemd(req *longshorev1.CreateRequest, img core.Image) (bool, error) {
	switch req.GetSystemd() {
	case systemdAlways:
		return true, nil
	case systemdNever:
		return false, nil
	}
	args, err := ocispec.Command(&img.Config.Config, entrypoint(req), req.GetCommand())
	if _, joins := JoinedContainer(req.GetPid()); err != nil || req.GetInit() || req.GetPid() == "host" || joins {
		return false, nil //nolint:nilerr // the create reports a missing command itself
	}
	if len(args) > 2 && args[0] == "/bin/sh" && args[1] == "-c" {
		args = args[2:]
	}
	if !slices.Contains([]string{"/sbin/init", "/usr/sbin/init", "/usr/local/sbin/init"}, args[0]) && path.Base(args[0]) != "systemd" {
		return false, nil
	}
	return true, systemdNeeds(req)
}

// prepareSystemd changes the configuration of a container for systemd as its first process: it may divide its cgroup, and
// stops by systemd's signal unless the request or the image names another one.
func prepareSystemd(cfg *core.ContainerConfig, img core.Image) {
	cfg.Delegate = true
	if cfg.Stop.Signal == "" && img.Config.Config.StopSignal == "" {
		cfg.Stop.Signal = haltSignal
	}
}

// systemdMounts returns the file systems in memory that systemd needs, without those in places where the container has a
// mount of its own.
func systemdMounts(taken []string) (list []specs.Mount) {
	for _, m := range []specs.Mount{
		{Destination: "/run", Options: []string{"nosuid", "nodev", "mode=755", "tmpcopyup"}},
		{Destination: "/run/lock", Options: []string{"nosuid", "nodev", "noexec", "mode=1777"}},
		{Destination: "/tmp", Options: []string{"nosuid", "nodev", "mode=1777"}},
		{Destination: "/var/log/journal", Options: []string{"nosuid", "nodev", "mode=755"}},
	} {
		if !slices.Contains(taken, m.Destination) {
			m.Type, m.Source = "tmpfs", "tmpfs"
			list = append(list, m)
		}
	}
	return list
}

// targets returns the places of a container's mounts, except those that every container has.
func targets(req *longshorev1.CreateRequest, volumes []core.VolumeMount) (list []string) {
	for _, t := range req.GetTmpfs() {
		list = append(list, path.Clean(t.GetTarget()))
	}
	for _, m := range req.GetMounts() {
		list = append(list, path.Clean(m.GetTarget()))
	}
	for _, m := range req.GetImages() {
		list = append(list, path.Clean(m.GetTarget()))
	}
	for _, v := range volumes {
		list = append(list, path.Clean(v.Target))
	}
	return list
}

// systemdEnv returns variables for systemd: the kind of its container, and the machine's ID. The image and the request may
// have others.
func systemdEnv(img *imagespec.ImageConfig, id core.ID) (env []string) {
	const uuid = 32 // digits of an ID of a machine
	for _, v := range []string{"container=longshore", "container_uuid=" + string(id)[:min(uuid, len(id))]} {
		name, _, _ := strings.Cut(v, "=")
		if img == nil || !slices.ContainsFunc(img.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			env = append(env, v)
		}
	}
	return env
}
