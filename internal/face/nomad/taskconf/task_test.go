package taskconf_test

import (
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/taskconf"
	"github.com/longshore/longshore/internal/ocispec"
)

// whole is a configuration with every kind of key, as Nomad sends it: keys that are not set exist,
// and are nil.
func whole() map[string]any {
	return map[string]any{
		"image": "redis:7", "image_pull_timeout": "90s", "command": "redis-server", "args": []string{"--port", "1"}, "entrypoint": []string{}, "work_dir": "/data",
		"hostname": nil, "env": map[string]any{"A": "1"}, "labels": []any{map[string]any{"a": "b"}, map[string]any{"c": "d"}},
		"network_mode": "container:side-5f0f0c4e-8d5c-4f3d-9a5d-000000000001", "ports": nil, "dns_servers": []string{"192.0.2.1"}, "extra_hosts": []string{"db:192.0.2.2"},
		"pid_mode": "host", "cap_drop": []string{"ALL"}, "security_opt": []string{"no-new-privileges", "seccomp=unconfined", "apparmor:web", "landlock=no-network-bind,read-only-system"},
		"mount": []any{
			map[string]any{"type": "bind", "source": "local/conf", "target": "/conf", "readonly": true, "bind_options": map[string]any{"propagation": "rslave"}, "tmpfs_options": nil},
			map[string]any{"type": "image", "source": "models", "target": "/m", "image_options": map[string]any{"subpath": "/small"}},
			map[string]any{"type": nil, "source": "data", "target": "/data/", "volume_options": map[string]any{
				"no_copy": true, "subpath": "a/b", "driver_config": map[string]any{"name": "local", "options": []any{map[string]any{"type": "tmpfs"}, map[string]any{"device": "tmpfs"}}},
			}},
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
		Security: taskconf.Security{Seccomp: "unconfined", AppArmor: "web", Landlock: "no-network-bind,read-only-system", NoNewPrivileges: true},
		Mounts: []taskconf.Mount{
			{Type: "bind", Source: "local/conf", Target: "/conf", ReadOnly: true, Propagation: "rslave"},
			{Type: "image", Source: "models", Target: "/m", SubPath: "/small", Pull: "always"},
			{Type: "volume", Source: "data", Target: "/data", NoCopy: true, SubPath: "a/b", Options: map[string]string{"type": "tmpfs", "device": "tmpfs"}},
			{Type: "tmpfs", Target: "/scratch", Size: 4096, Mode: 0o777},
			{Type: "bind", Source: "local/x", Target: "/x", ReadOnly: true, Propagation: "rshared", Make: true},
			{Type: "tmpfs", Target: "/t", Size: 1 << 20},
		},
		Devices: []ocispec.Device{{Source: "/dev/null", Target: "/dev/void", Access: "r"}},
		Sysctls: map[string]string{"net.core.somaxconn": "128"}, Ulimits: map[string]string{"nofile": "1024:2048"},
		ShmBytes: 1 << 20, Pids: 100, HardMemoryMB: 256, OOMScoreAdj: -5, HardCPU: true, LogDriver: "json-file", LogFiles: 3, LogBytes: 2 << 20,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestKeysOfOtherDrivers: keys that docker's and podman's drivers name otherwise, or have alone.
func TestKeysOfOtherDrivers(t *testing.T) {
	null := []ocispec.Device{{Source: "/dev/null", Target: "/dev/void", Access: "r"}, {Source: "/dev/zero"}}
	for name, tc := range map[string]struct {
		config map[string]any
		want   taskconf.Task
	}{
		"load":            {map[string]any{"load": "images/web.tar"}, taskconf.Task{Load: "images/web.tar"}},
		"addresses":       {map[string]any{"ipv4_address": "192.0.2.7", "ipv6_address": "fd00::7"}, taskconf.Task{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fd00::7")}}},
		"cgroupns":        {map[string]any{"cgroupns": "private"}, taskconf.Task{OwnCgroups: true}},
		"the host's":      {map[string]any{"cgroupns": "host", "volume_driver": "local", "container_exists_attempts": 5}, taskconf.Task{}},
		"working_dir":     {map[string]any{"working_dir": "/srv"}, taskconf.Task{WorkDir: "/srv"}},
		"userns auto":     {map[string]any{"userns": "auto"}, taskconf.Task{Users: true}},
		"devices, text":   {map[string]any{"devices": []string{"/dev/null:/dev/void:r", "/dev/zero"}}, taskconf.Task{Devices: null}},
		"devices, typed":  {map[string]any{"devices": []any{`["tuple",["string","string"]]`, []string{"/dev/null:/dev/void:r", "/dev/zero"}}}, taskconf.Task{Devices: null}},
		"devices, none":   {map[string]any{"devices": []any{`"dynamic"`, nil}}, taskconf.Task{}},
		"devices, blocks": {map[string]any{"devices": []any{map[string]any{"host_path": "/dev/null", "container_path": "/dev/void", "cgroup_permissions": "r"}, map[string]any{"host_path": "/dev/zero"}}}, taskconf.Task{Devices: null}},
		"volume labels": {
			map[string]any{"mount": []any{map[string]any{"source": "data", "target": "/data", "volume_options": map[string]any{"labels": []any{map[string]any{"a": "b"}}, "driver_config": map[string]any{"name": "local"}}}}},
			taskconf.Task{Mounts: []taskconf.Mount{{Type: "volume", Source: "data", Target: "/data", Labels: map[string]string{"a": "b"}}}},
		},
		"logs of docker's": {
			map[string]any{"logging": map[string]any{"type": "json-file", "config": []any{map[string]any{"max-size": "2m", "max-file": "4", "tag": "x", "env": "y"}}}},
			taskconf.Task{LogDriver: "json-file", LogFiles: 4, LogBytes: 2 << 20, Warnings: []string{"config.logging.config: Nomad's log files have no env, tag"}},
		},
		"logs, both": {
			map[string]any{"logging": map[string]any{"config": map[string]any{"max-size": "2m", "max-file": "4"}, "max_files": 3, "max_file_size": 1}},
			taskconf.Task{LogFiles: 3, LogBytes: 1 << 20},
		},
		"logs elsewhere": {
			map[string]any{"logging": map[string]any{"driver": "journald", "options": map[string]any{"tag": "x"}}},
			taskconf.Task{LogDriver: "journald", LogOptions: map[string]string{"tag": "x"}},
		},
		"podman's security": {
			map[string]any{"apparmor_profile": "web", "selinux_opts": []string{"type:x"}, "init_path": "/tini", "socket": "app", "os": "linux", "arch": runtime.GOARCH, "auth": map[string]any{"tls_verify": true}},
			taskconf.Task{Security: taskconf.Security{AppArmor: "web", SELinux: []string{"type:x"}}, Warnings: []string{
				"config.init_path has no effect: the agent has an init of its own", `config.socket "app" has no effect: the agent runs all tasks`,
			}},
		},
		"podman's memory": {
			map[string]any{"memory_reservation": "16m", "memory_swap": "-1", "memory_swappiness": 60, "shm_size": "64m"},
			taskconf.Task{ReservedMemory: 16 << 20, Swap: -1, Swappiness: new(uint64(60)), ShmBytes: 64 << 20},
		},
		"podman's addresses": {map[string]any{"static_ips": []string{"192.0.2.7"}}, taskconf.Task{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}},
		"one word":           {map[string]any{"entrypoint": []any{`"string"`, "/bin/sh"}}, taskconf.Task{Entrypoint: []string{"/bin/sh"}}},
		"two words":          {map[string]any{"entrypoint": []any{`["tuple",["string","string"]]`, []string{"[", "-f"}}}, taskconf.Task{Entrypoint: []string{"[", "-f"}}},
		"no word":            {map[string]any{"entrypoint": []any{`"dynamic"`, nil}}, taskconf.Task{}},
		"podman's tmpfs": {
			map[string]any{"tmpfs": []string{"/t:rw,size=1m,mode=0700,noexec,uid=5,noatime", "/u:ro"}},
			taskconf.Task{Mounts: []taskconf.Mount{
				{Type: "tmpfs", Target: "/t", Size: 1 << 20, Mode: 0o700, Flags: []string{"noexec", "uid=5", "noatime"}}, {Type: "tmpfs", Target: "/u", ReadOnly: true},
			}},
		},
		"podman's volumes": {
			map[string]any{"volumes": []string{"local/x:/x:rw:rprivate", "local/y:/y:ro,noexec,nosuid,nodev,rbind,Z"}},
			taskconf.Task{Mounts: []taskconf.Mount{
				{Type: "bind", Source: "local/x", Target: "/x", Propagation: "rprivate", Make: true},
				{Type: "bind", Source: "local/y", Target: "/y", ReadOnly: true, Make: true, Relabel: "Z", Flags: []string{"noexec", "nosuid", "nodev"}},
			}},
		},
		"volumes without a name": {
			map[string]any{"volumes": []string{"/data"}, "mount": []any{map[string]any{"target": "/more"}}},
			taskconf.Task{Mounts: []taskconf.Mount{{Type: "volume", Target: "/more", Anonymous: true}, {Type: "volume", Target: "/data", Anonymous: true}}},
		},
		"no logs": {map[string]any{"logging": map[string]any{"type": "none"}}, taskconf.Task{NoLogs: true}},
	} {
		config := map[string]any{"image": "redis:7"}
		maps.Copy(config, tc.config)
		tc.want.Image, tc.want.Pull = "redis:7", "missing"
		got, err := taskconf.Parse(nomadtest.Encode(config), "")
		if diff := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
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
		"image name required":           {"image": nil},
		"an image and a rootfs":         {"rootfs": "/"},
		"does not know the key":         {"colour": "blue"},
		".command cannot be":            {"command": 7},
		".args has int64 in it":         {"args": []any{1}},
		".labels.a cannot be":           {"labels": map[string]any{"a": 1}},
		".mount[0]":                     {"mount": []any{map[string]any{"typo": "x"}}},
		"no whole number":               {"pids_limit": 1.5},
		"is no number":                  {"pids_limit": "many"},
		"config.image_pull_policy":      {"image_pull_policy": "sometimes"},
		"config.image_pull_timeout":     {"image_pull_timeout": "soon"},
		"config.work_dir":               {"work_dir": "data"},
		"config.env":                    {"env": map[string]any{"A=B": "x"}},
		"config.network_mode":           {"network_mode": "cni/x"},
		"config.pid_mode":               {"pid_mode": "task:x"},
		"neither host nor auto":         {"userns": "auto:size=1000"},
		"config.userns_mode":            {"userns_mode": "keep-id"},
		"with privileged":               {"userns_mode": "auto", "privileged": true},
		"with pid_mode = host":          {"userns_mode": "auto", "pid_mode": "host"},
		"with rootfs":                   {"userns_mode": "auto", "image": nil, "rootfs": "/"},
		"config.security_opt":           {"security_opt": []string{"systempaths=all"}},
		"config.ipc_mode":               {"ipc_mode": "container:x"},
		"config.pid_mode \"shareable\"": {"pid_mode": "shareable"},
		"a volume's name":               {"volume_driver": "local", "volumes": []string{"a/b:/x"}},
		"mount target":                  {"volumes": []string{"a:b"}},
		"neither SOURCE:TARGET":         {"volumes": []string{"a"}},
		"nor an absolute TARGET":        {"volumes": []string{"a:/b:ro:Z:x"}},
		"no owners are changed":         {"volumes": []string{"a:/b:U"}},
		"no overlays of directories":    {"volumes": []string{"a:/b:O"}},
		"owners are mapped":             {"volumes": []string{"a:/b:idmap"}},
		"a volume has no such options":  {"volume_driver": "local", "volumes": []string{"a:/b:noexec"}},
		"nothing of the image is":       {"tmpfs": []string{"/a:tmpcopyup"}},
		"option \"mode=9\"":             {"tmpfs": []string{"/a:mode=9"}},
		"option \"uid=x\"":              {"tmpfs": []string{"/a:uid=x"}},
		"config.arch \"riscv64\"":       {"arch": "riscv64"},
		"config.os \"windows\"":         {"os": "windows"},
		"config.variant":                {"variant": "v7"},
		"config.static_mac":             {"static_mac": "02:00:00:00:00:01"},
		"config.static_ips":             {"static_ips": []string{"::ffff:192.0.2.1"}},
		"skip_verify":                   {"auth": map[string]any{"tls_verify": false}},
		"config.memory_reservation":     {"memory_reservation": "much"},
		"config.memory_swap \"0\"":      {"memory_swap": "0"},
		"config.memory_swappiness":      {"memory_swappiness": 101},
		"config.shm_size":               {"shm_size": "big"},
		"level of Landlock":             {"security_opt": []string{"landlock=most"}},
		"of config.security_opt":        {"apparmor_profile": "a", "security_opt": []string{"apparmor=b"}},
		"config.entrypoint cannot be":   {"entrypoint": 7},
		"config.volumes \"a:/b:odd\"":   {"volumes": []string{"a:/b:odd"}},
		"config.tmpfs":                  {"tmpfs": []string{"/a:odd"}},
		"is no volume's name":           {"mount": []any{map[string]any{"source": "a/b", "target": "/x"}}},
		"an image is read-only":         {"mount": []any{map[string]any{"type": "image", "source": "a", "target": "/x", "readonly": false}}},
		"type image with source":        {"mount": []any{map[string]any{"type": "image", "target": "/x"}}},
		"with subpath \"../b\"":         {"mount": []any{map[string]any{"type": "image", "source": "a", "target": "/x", "image_options": map[string]any{"subpath": "../b"}}}},
		"type volume with subpath":      {"mount": []any{map[string]any{"source": "a", "target": "/x", "image_options": map[string]any{"subpath": "b"}}}},
		"config.devices":                {"devices": []any{map[string]any{"host_path": "null"}}},
		"config.ulimit":                 {"ulimit": map[string]any{"nofiles": "1"}},
		"config.stop_signal":            {"stop_signal": "SIGNONE"},
		"they are one key":              {"logging": map[string]any{"driver": "nomad", "type": "none"}},
		"max-size \"huge\"":             {"logging": map[string]any{"config": map[string]any{"max-size": "huge"}}},
		"max-file \"-1\"":               {"logging": map[string]any{"config": map[string]any{"max-file": "-1"}}},
		"auth { helper } of":            {"auth": map[string]any{"helper": "ecr-login"}},
		"images.docker_config":          {"auth": map[string]any{"config": "/root/.docker/config.json"}},
		"use a service block":           {"network_aliases": []string{"db"}},
		"use ipv4_address":              {"mac_address": "02:00:00:00:00:01"},
		"is of Windows":                 {"isolation": "hyperv"},
		"storage_opt size: \"10\"":      {"storage_opt": map[string]any{"size": "10"}},
		"storage_opt dm.fs":             {"storage_opt": map[string]any{"dm.fs": "xfs"}},
		"config.volume_driver":          {"volume_driver": "pxd"},
		"config.port_map":               {"port_map": []any{map[string]any{"http": "many"}}},
		"advertise_ipv6_address":        {"advertise_ipv6_address": true},
		"driver_config is not":          {"mount": []any{map[string]any{"source": "a", "target": "/x", "volume_options": map[string]any{"driver_config": map[string]any{"name": "pxd"}}}}},
		"with driver_config":            {"mount": []any{map[string]any{"type": "bind", "source": "a", "target": "/x", "volume_options": map[string]any{"driver_config": map[string]any{"name": "local", "options": map[string]any{"type": "nfs"}}}}}},
		"with subpath \"../c\"":         {"mount": []any{map[string]any{"source": "a", "target": "/x", "volume_options": map[string]any{"subpath": "../c"}}}},
		"type bind with labels":         {"mount": []any{map[string]any{"type": "bind", "source": "a", "target": "/x", "volume_options": map[string]any{"labels": map[string]any{"a": "b"}}}}},
		"config.ipv4_address":           {"ipv4_address": "fd00::1"},
		"config.ipv6_address":           {"ipv6_address": "::ffff:192.0.2.1"},
		"config.cgroupns":               {"cgroupns": "new"},
		"config.load \"../x.tar\"":      {"load": "../x.tar"},
		"config.load \"/x.tar\"":        {"load": "/x.tar"},
		"config.working_dir":            {"work_dir": "/a", "working_dir": "/b"},
		"use auto":                      {"userns": "keep-id:uid=200"},
		"config.devices: device":        {"devices": []string{"null"}},
		"of \"rwm\"":                    {"devices": []string{"/dev/null:/dev/x:z"}},
		"Nomad runs":                    {"healthchecks": map[string]any{"disable": false}},
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

func TestDockersWaysToWriteIt(t *testing.T) {
	parse := func(config map[string]any) taskconf.Task {
		t.Helper()
		all := map[string]any{"image": "redis:7"}
		for k, v := range config {
			all[k] = v
		}
		task, err := taskconf.Parse(nomadtest.Encode(all), "")
		if err != nil {
			t.Errorf("%v: %v", config, err)
		}
		return task
	}
	for name, want := range map[string]string{"docker://redis:7": "redis:7", "https://redis:7": "redis:7", "https://docker://redis:7": "redis:7"} {
		if got := parse(map[string]any{"image": name}).Image; got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, c := range []struct {
		driver, text string
		want         taskconf.Mount
	}{
		{"", "data:/data", taskconf.Mount{Type: "bind", Source: "data", Target: "/data", Make: true}},
		{"local", "data:/data", taskconf.Mount{Type: "volume", Source: "data", Target: "/data"}},
		{"local", "data:/data:ro,nocopy", taskconf.Mount{Type: "volume", Source: "data", Target: "/data", ReadOnly: true, NoCopy: true}},
		{"local", "/srv:/data:cached", taskconf.Mount{Type: "bind", Source: "/srv", Target: "/data", Make: true}},
	} {
		if got := parse(map[string]any{"volume_driver": c.driver, "volumes": []string{c.text}}).Mounts; len(got) != 1 || !cmp.Equal(got[0], c.want) {
			t.Errorf("%s with the driver %q: %+v", c.text, c.driver, got)
		}
	}
	if task := parse(map[string]any{"network_mode": "default", "port_map": map[string]any{"http": "80"}}); task.Network != "bridge" || task.PortMap["http"] != 80 {
		t.Errorf("network %q, ports %v", task.Network, task.PortMap)
	}
	task := parse(map[string]any{"ipc_mode": "shareable", "security_opt": []string{"label=disable", "systempaths=unconfined"}})
	if !task.Security.AllPaths || task.HostIPC || len(task.Warnings) != 0 || !slices.Equal(task.Security.SELinux, []string{"disable"}) {
		t.Errorf("%+v, %q", task.Security, task.Warnings)
	}
}
