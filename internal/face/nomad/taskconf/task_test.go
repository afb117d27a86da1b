package taskconf_test

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/taskconf"
	"github.com/longshore/longshore/internal/ocispec"
)

// whole is a configuration with every kind of key, as Nomad sends it: keys that
// are not set are there, and nil.
func whole() map[string]any {
	return map[string]any{
		"image": "redis:7", "image_pull_timeout": "90s", "command": "redis-server", "args": []string{"--port", "1"}, "entrypoint": []string{}, "work_dir": "/data",
		"hostname": nil, "env": map[string]any{"A": "1"}, "labels": []any{map[string]any{"a": "b"}, map[string]any{"c": "d"}},
		"network_mode": "container:side-5f0f0c4e-8d5c-4f3d-9a5d-000000000001", "ports": nil, "dns_servers": []string{"192.0.2.1"}, "extra_hosts": []string{"db:192.0.2.2"},
		"pid_mode": "host", "cap_drop": []string{"ALL"}, "security_opt": []string{"no-new-privileges", "seccomp=unconfined", "apparmor:web"},
		"mount": []any{
			map[string]any{"type": "bind", "source": "local/conf", "target": "/conf", "readonly": true, "bind_options": map[string]any{"propagation": "rslave"}, "tmpfs_options": nil},
			map[string]any{"type": "image", "source": "models", "target": "/m", "image_options": map[string]any{"subpath": "/small"}},
			map[string]any{"type": nil, "source": "data", "target": "/data/", "volume_options": map[string]any{"no_copy": true}},
		},
		"mounts":  []any{map[string]any{"type": "tmpfs", "target": "/scratch", "tmpfs_options": map[string]any{"size": 4096, "mode": 511}}},
		"volumes": []string{"local/x:/x:ro,rshared"}, "tmpfs": []string{"/t:size=1m"},
		"devices": []any{map[string]any{"host_path": "/dev/null", "container_path": "/dev/void", "cgroup_permissions": "r"}},
		"sysctl":  []any{map[string]any{"net.core.somaxconn": "128"}}, "ulimit": map[string]any{"nofile": "1024:2048"},
		"shm_size": 1 << 20, "pids_limit": "100", "memory_hard_limit": 256.0, "oom_score_adj": -5, "cpu_hard_limit": true,
		"logging": map[string]any{"driver": "nomad", "max_files": 3, "max_file_size": 2},
		"auth":    map[string]any{"username": "u", "password": "p", "email": nil, "server_address": nil},
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	got, err := taskconf.Parse(nomadtest.Encode(whole()), "")
	if err != nil {
		t.Fatal(err)
	}
	want := taskconf.Task{
		Image: "redis:7", Pull: "missing", PullTimeout: 90 * time.Second, Auth: taskconf.Auth{Username: "u", Password: "p"},
		Command: []string{"redis-server", "--port", "1"}, Entrypoint: []string{}, WorkDir: "/data", Env: map[string]string{"A": "1"}, Labels: map[string]string{"a": "b", "c": "d"},
		Network: "task:side", DNS: taskconf.DNS{Servers: []string{"192.0.2.1"}}, ExtraHosts: []string{"db:192.0.2.2"}, HostPID: true, CapDrop: []string{"ALL"},
		Security: taskconf.Security{Seccomp: "unconfined", AppArmor: "web", NoNewPrivileges: true},
		Mounts: []taskconf.Mount{
			{Type: "bind", Source: "local/conf", Target: "/conf", ReadOnly: true, Propagation: "rslave"},
			{Type: "image", Source: "models", Target: "/m", SubPath: "/small", Pull: "always"},
			{Type: "volume", Source: "data", Target: "/data", NoCopy: true},
			{Type: "tmpfs", Target: "/scratch", Size: 4096, Mode: 0o777},
			{Type: "bind", Source: "local/x", Target: "/x", ReadOnly: true, Propagation: "rshared"},
			{Type: "tmpfs", Target: "/t", Size: 1 << 20},
		},
		Devices: []ocispec.Device{{Source: "/dev/null", Target: "/dev/void", Access: "r"}},
		Sysctls: map[string]string{"net.core.somaxconn": "128"}, Ulimits: map[string]string{"nofile": "1024:2048"},
		ShmBytes: 1 << 20, Pids: 100, HardMemoryMB: 256, OOMScoreAdj: -5, HardCPU: true, LogFiles: 3, LogBytes: 2 << 20,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhenAnImageIsPulled(t *testing.T) {
	for _, tc := range []struct {
		more map[string]any
		want string
	}{
		{map[string]any{"image": "redis:7"}, "missing"},
		{map[string]any{"image": "redis"}, "always"},
		{map[string]any{"image": "localhost:5000/redis"}, "always"},
		{map[string]any{"image": "redis:latest"}, "always"},
		{map[string]any{"image": "redis@sha256:0123"}, "missing"},
		{map[string]any{"image": "redis:7", "force_pull": true}, "always"},
		{map[string]any{"image": "redis", "image_pull_policy": "never"}, "never"},
	} {
		got, err := taskconf.Parse(nomadtest.Encode(tc.more), "")
		if err != nil || got.Pull != tc.want {
			t.Errorf("%v: %s, %v; want %s", tc.more, got.Pull, err, tc.want)
		}
	}
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for text, change := range map[string]map[string]any{
		"image name required":         {"image": nil},
		"an image and a rootfs":       {"rootfs": "/"},
		"does not know the key":       {"colour": "blue"},
		".command cannot be":          {"command": 7},
		".args has int64 in it":       {"args": []any{1}},
		".labels.a cannot be":         {"labels": map[string]any{"a": 1}},
		".mount[0]":                   {"mount": []any{map[string]any{"typo": "x"}}},
		"no whole number":             {"pids_limit": 1.5},
		"is no number":                {"pids_limit": "many"},
		"config.image_pull_policy":    {"image_pull_policy": "sometimes"},
		"config.image_pull_timeout":   {"image_pull_timeout": "soon"},
		"config.work_dir":             {"work_dir": "data"},
		"config.env":                  {"env": map[string]any{"A=B": "x"}},
		"config.network_mode":         {"network_mode": "cni/x"},
		"config.pid_mode":             {"pid_mode": "task:x"},
		"config.userns_mode":          {"userns_mode": "keep-id"},
		"with privileged":             {"userns_mode": "auto", "privileged": true},
		"with pid_mode = host":        {"userns_mode": "auto", "pid_mode": "host"},
		"with rootfs":                 {"userns_mode": "auto", "image": nil, "rootfs": "/"},
		"config.security_opt":         {"security_opt": []string{"label=disable"}},
		"mount target":                {"volumes": []string{"a:b"}},
		"is not SOURCE:TARGET":        {"volumes": []string{"a"}},
		"config.volumes \"a:/b:odd\"": {"volumes": []string{"a:/b:odd"}},
		"config.tmpfs":                {"tmpfs": []string{"/a:rw"}},
		"is no volume's name":         {"mount": []any{map[string]any{"source": "a/b", "target": "/x"}}},
		"an image is read-only":       {"mount": []any{map[string]any{"type": "image", "source": "a", "target": "/x", "readonly": false}}},
		"type image with source":      {"mount": []any{map[string]any{"type": "image", "target": "/x"}}},
		"with subpath \"../b\"":       {"mount": []any{map[string]any{"type": "image", "source": "a", "target": "/x", "image_options": map[string]any{"subpath": "../b"}}}},
		"type volume with subpath":    {"mount": []any{map[string]any{"source": "a", "target": "/x", "image_options": map[string]any{"subpath": "b"}}}},
		"config.devices":              {"devices": []any{map[string]any{"host_path": "null"}}},
		"config.ulimit":               {"ulimit": map[string]any{"nofiles": "1"}},
		"config.stop_signal":          {"stop_signal": "SIGNONE"},
		"config.logging.driver":       {"logging": map[string]any{"driver": "journald"}},
		"Nomad runs":                  {"healthchecks": map[string]any{"disable": false}},
	} {
		config := map[string]any{"image": "redis:7"}
		for k, v := range change {
			config[k] = v
		}
		if _, err := taskconf.Parse(nomadtest.Encode(config), ""); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: got %v, want %s", change, err, text)
		}
	}
	for _, data := range [][]byte{{0xc1}, nomadtest.Encode([]string{"image"}), nomadtest.Encode("image")} {
		if _, err := taskconf.Parse(data, ""); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%x: %v", data, err)
		}
	}
	// A key of a newer version that is not set harms nobody.
	if _, err := taskconf.Parse(nomadtest.Encode(map[string]any{"image": "redis:7", "colour": nil}), ""); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(nomadtest.Encode(whole()))
	f.Add(nomadtest.Encode(map[string]any{"image": "a", "mount": []any{map[string]any{}}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := taskconf.Parse(data, "")
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v is no InvalidArgument", err)
			}
			return
		}
		if (got.Image == "") == (got.Rootfs == "") {
			t.Errorf("image %q and rootfs %q", got.Image, got.Rootfs)
		}
		for _, m := range got.Mounts {
			if !strings.HasPrefix(m.Target, "/") || m.Target == "/" {
				t.Errorf("a mount at %q", m.Target)
			}
		}
	})
}
