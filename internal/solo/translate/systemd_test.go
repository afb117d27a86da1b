package translate

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

func imageWith(cfg imagespec.ImageConfig) (img core.Image) {
	img.Config.Config = cfg
	return img
}

// TestWhichCommandsAreSystemd compares the value true with podman's rule, and the other values beside it.
func TestWhichCommandsAreSystemd(t *testing.T) {
	for _, c := range []struct {
		value   string
		command []string
		want    bool
	}{
		{"true", []string{"/sbin/init"}, true},
		{"true", []string{"/usr/sbin/init", "--log-level=debug"}, true},
		{"true", []string{"/usr/local/sbin/init"}, true},
		{"true", []string{"/usr/lib/systemd/systemd"}, true},
		{"true", []string{"systemd"}, true},
		{"", []string{"/lib/systemd/systemd", "--system"}, true},
		{"true", []string{"/bin/sh", "-c", "/sbin/init"}, true},
		{"true", []string{"/bin/sh", "-c", "/sbin/init --x"}, false},
		{"true", []string{"/bin/sh", "/sbin/init"}, false},
		{"true", []string{"/bin/init"}, false},
		{"true", []string{"init"}, false},
		{"true", []string{"/bin/systemd-nspawn"}, false},
		{"false", []string{"/sbin/init"}, false},
		{"always", []string{"/bin/true"}, true},
	} {
		img := imageWith(imagespec.ImageConfig{Cmd: c.command})
		got, err := isSystemd(&longshorev1.CreateRequest{Systemd: c.value}, img)
		if err != nil || got != c.want {
			t.Errorf("%q %q: %v, %v", c.value, c.command, got, err)
		}
		cfg, err := Container(&longshorev1.CreateRequest{Systemd: c.value, Image: "x", Command: c.command}, "c", core.Image{}, nil)
		if err != nil || cfg.Delegate != c.want || (cfg.Stop.Signal == "SIGRTMIN+3") != c.want {
			t.Errorf("%q %q: %+v, %v", c.value, c.command, cfg.Stop, err)
		}
	}
}

// TestTheStopSignalOfSystemd: the request's and the image's come before systemd's own.
func TestTheStopSignalOfSystemd(t *testing.T) {
	for _, c := range []struct{ asked, image, want string }{
		{"", "", "SIGRTMIN+3"}, {"37", "", "37"}, {"", "SIGTERM", ""}, {"RTMIN+4", "SIGTERM", "RTMIN+4"},
	} {
		img := imageWith(imagespec.ImageConfig{Cmd: []string{"/sbin/init"}, StopSignal: c.image})
		cfg, err := Container(&longshorev1.CreateRequest{Image: "x", StopSignal: c.asked}, "c", img, nil)
		if err != nil || cfg.Stop.Signal != c.want {
			t.Errorf("%+v: %q, %v", c, cfg.Stop.Signal, err)
		}
	}
}

// TestSystemdConflicts: options that exclude systemd are refused. With the value true, another first process is no systemd.
func TestSystemdConflicts(t *testing.T) {
	img := imageWith(imagespec.ImageConfig{Cmd: []string{"/sbin/init"}})
	for name, c := range map[string]struct {
		req    *longshorev1.CreateRequest
		refuse bool // with the value true
	}{
		"init":     {&longshorev1.CreateRequest{Init: true}, false},
		"pid":      {&longshorev1.CreateRequest{Pid: "host"}, false},
		"joined":   {&longshorev1.CreateRequest{Pid: "container:other"}, false},
		"cgroupns": {&longshorev1.CreateRequest{Cgroupns: "host"}, true},
	} {
		c.req.Image = "x"
		if is, err := isSystemd(c.req, img); (err != nil) != c.refuse || is != c.refuse {
			t.Errorf("%s: %v, %v", name, is, err)
		}
		c.req.Systemd = "always"
		if err := Check(c.req); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s with always: %v", name, err)
		}
		c.req.Systemd = "false"
		if is, err := isSystemd(c.req, img); is || err != nil || Check(c.req) != nil {
			t.Errorf("%s with false: %v, %v", name, is, err)
		}
	}
	if err := Check(&longshorev1.CreateRequest{Image: "x", Systemd: "yes"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("yes: %v", err)
	}
}

// TestSystemdsOwnMounts: they give way to the request's and the image's.
func TestSystemdsOwnMounts(t *testing.T) {
	places := func(taken ...string) (list []string) {
		for _, m := range systemdMounts(taken) {
			list = append(list, m.Destination)
		}
		return list
	}
	if got := places(); !slices.Equal(got, []string{"/run", "/run/lock", "/tmp", "/var/log/journal"}) {
		t.Errorf("all: %q", got)
	}
	req := &longshorev1.CreateRequest{Tmpfs: []*longshorev1.Tmpfs{{Target: "/tmp/"}}, Mounts: []*longshorev1.Mount{{Source: "v", Target: "/var/log//journal"}}}
	if got := places(targets(req, []core.VolumeMount{{Target: "/run"}})...); !slices.Equal(got, []string{"/run/lock"}) {
		t.Errorf("beside others: %q", got)
	}
}

func TestSystemdsVariables(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	if got := systemdEnv(nil, id); !slices.Equal(got, []string{"container=longshore", "container_uuid=" + id[:32]}) {
		t.Errorf("%q", got)
	}
	img := imageWith(imagespec.ImageConfig{Env: []string{"container=oci", "container_uuidx=1"}}).Config.Config
	if got := systemdEnv(&img, id); !slices.Equal(got, []string{"container_uuid=" + id[:32]}) {
		t.Errorf("beside the image's: %q", got)
	}
}
