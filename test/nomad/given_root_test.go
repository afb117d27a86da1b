package nomad

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/roottest"
)

// asks is one task that inspects itself.
type asks struct {
	name   string
	config map[string]any
	change func(t *nomaddriver.TaskConfig)
	script string
	want   []string
}

func (r *rig) answers(cases []asks) {
	r.t.Helper()
	for _, c := range cases {
		task := r.given(c.name, c.script, c.config)
		if c.change != nil {
			c.change(task)
		}
		out, result := r.said(task)
		if result.GetExitCode() != 0 {
			r.t.Errorf("%s ended with %v", c.name, result)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				r.t.Errorf("%s: %q is not in\n%s", c.name, want, out)
			}
		}
	}
}

// write makes a file below the allocation's directory.
func (r *rig) write(name, text string) {
	r.t.Helper()
	r.mkdir(filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(r.dir, allocID, name), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// TestWhatATaskIsGiven are the keys of a job, seen from inside.
func TestWhatATaskIsGiven(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, map[string]any{"volumes": map[string]any{"enabled": true}})
		r.write("dir/local/foo", "in local\n")
		r.write("secret/secrets/key", "hidden\n")
		host := t.TempDir()
		if err := os.WriteFile(filepath.Join(host, "from"), []byte("from the host\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.answers([]asks{
			{name: "dir", config: map[string]any{"work_dir": "/local"}, script: "cat foo; pwd", want: []string{"in local", "/local"}},
			{name: "secret", script: "cat /secrets/key", want: []string{"hidden"}},
			{name: "shared", script: "echo mine > /alloc/data/file; cat $NOMAD_ALLOC_DIR/data/file", want: []string{"mine"}},
			{name: "logs", script: "touch /alloc/logs/x 2>/dev/null || echo the logs are not its own", want: []string{"the logs are not its own"}},
			{name: "root", script: "id -u", want: []string{"0\n"}},
			{name: "numbers", change: func(t *nomaddriver.TaskConfig) { t.User = "33:44" }, script: "id -u; id -g", want: []string{"33\n44\n"}},
			{name: "user", change: func(t *nomaddriver.TaskConfig) { t.User = "www-data" }, script: "id -u; echo $HOME", want: []string{"33\n/var/www"}},
			{name: "groups", config: map[string]any{"group_add": []string{"nogroup", "77"}}, script: "id -G", want: []string{"65534", "77"}},
			{
				name: "env", config: map[string]any{"env": []any{map[string]any{"OWN": "the job's", "NOMAD_JOB_NAME": "other"}}},
				script: "env", want: []string{"OWN=the job's", "NOMAD_TASK_NAME=env", "NOMAD_JOB_NAME=other", "PATH=/bin"},
			},
			{name: "entrypoint", config: map[string]any{"entrypoint": []string{"/bin/echo", "entered"}, "command": "with", "args": []string{"more"}}, want: []string{"entered with more"}},
			{name: "readonly", config: map[string]any{"readonly_rootfs": true}, script: "touch /x 2>/dev/null || echo read-only; touch /local/x && echo but not local", want: []string{"read-only", "but not local"}},
			{name: "walls", script: "mount -t tmpfs x /tmp 2>/dev/null || echo no mount; echo pid $$; grep -E 'Seccomp:|NoNewPrivs' /proc/self/status; cat /proc/self/oom_score_adj", want: []string{"no mount", "pid 1\n", "Seccomp:\t2", "\n0\n"}},
			{name: "init", config: map[string]any{"init": true}, script: "test $$ != 1 && echo not the first", want: []string{"not the first"}},
			{name: "shm", config: map[string]any{"shm_size": 1 << 20}, script: "df /dev/shm", want: []string{" 1024 "}},
			{name: "tmpfs", config: map[string]any{"tmpfs": []string{"/scratch:size=64k"}}, script: "df /scratch", want: []string{" 64 "}},
			{name: "sysctl", config: map[string]any{"sysctl": []any{map[string]any{"kernel.shmmni": "123"}}}, script: "cat /proc/sys/kernel/shmmni", want: []string{"123\n"}},
			{
				name: "podman", config: map[string]any{"tmpfs": []string{"/t:size=64k,mode=0700,noexec"}, "volumes": []string{host + ":/h:ro,noexec,nosuid:rprivate"}, "entrypoint": []any{`"string"`, "/bin/sh"}, "command": nil, "args": []string{"-c", "for d in /t /h; do grep \" $d .*noexec\" /proc/self/mountinfo >/dev/null && echo $d has it; done; stat -c %a /t"}},
				want: []string{"/t has it\n/h has it\n700\n"},
			},
			{name: "anonymous", config: map[string]any{"volumes": []string{"/data"}, "mount": []any{map[string]any{"target": "/more"}}}, script: "touch /data/x /more/x && grep -cE ' /(data|more) ' /proc/self/mountinfo", want: []string{"2\n"}},
			{name: "ulimit", config: map[string]any{"ulimit": []any{map[string]any{"nofile": "333:444"}}}, script: "grep 'open files' /proc/self/limits", want: []string{"333 ", "444 "}},
			{name: "score", config: map[string]any{"oom_score_adj": 100}, script: "cat /proc/self/oom_score_adj", want: []string{"100\n"}},
			{name: "hostname", config: map[string]any{"hostname": "box", "network_mode": "none"}, script: "hostname; ip -o link | wc -l", want: []string{"box\n1\n"}},
			{name: "hosts", config: map[string]any{"extra_hosts": []string{"db:192.0.2.7"}}, script: "cat /etc/hosts", want: []string{"192.0.2.7"}},
			{
				name: "dns", change: func(t *nomaddriver.TaskConfig) {
					t.Dns = &nomaddriver.DNSConfig{Servers: []string{"192.0.2.1", "192.0.2.2"}, Searches: []string{"one.test", "two.test"}, Options: []string{"ndots:2", "edns0"}}
				},
				script: "cat /etc/resolv.conf", want: []string{"nameserver 192.0.2.1", "nameserver 192.0.2.2", "search one.test two.test", "options ndots:2 edns0"},
			},
			{
				name: "binds", config: map[string]any{"mounts": []any{
					map[string]any{"type": "bind", "source": host, "target": "/rw"},
					map[string]any{"type": "bind", "source": host, "target": "/ro", "readonly": true},
					map[string]any{"type": "tmpfs", "target": "/mem", "tmpfs_options": map[string]any{"size": 128 << 10}},
				}, "volumes": []string{host + ":/short:ro"}},
				script: "cat /ro/from; touch /rw/binds; ls /short/binds; touch /ro/x 2>/dev/null || echo ro; touch /short/x 2>/dev/null || echo short; df /mem",
				want:   []string{"from the host", "/short/binds", "ro\nshort\n", " 128 "},
			},
			{
				name: "nomads", change: func(t *nomaddriver.TaskConfig) {
					t.Mounts = []*nomaddriver.Mount{{TaskPath: "/tmp/rw", HostPath: host}, {TaskPath: "/tmp/ro", HostPath: host, Readonly: true, PropagationMode: "host-to-task"}}
					t.Devices = []*nomaddriver.Device{{TaskPath: "/dev/inserted", HostPath: "/dev/random", CgroupPermissions: "rw"}}
				},
				script: "cat /tmp/ro/from; touch /tmp/rw/nomads && echo written; touch /tmp/ro/x 2>/dev/null || echo refused; stat -c %t:%T /dev/inserted; head -c 1 /dev/inserted | wc -c",
				want:   []string{"from the host", "written\nrefused\n1:8\n1\n"},
			},
			{name: "device", config: map[string]any{"devices": []any{map[string]any{"host_path": "/dev/zero", "container_path": "/dev/nought", "cgroup_permissions": "r"}}}, script: "stat -c %t:%T /dev/nought; head -c 3 /dev/nought | wc -c", want: []string{"1:5\n3\n"}},
			{name: "dropped", config: map[string]any{"cap_drop": []string{"ALL"}}, script: "grep CapEff /proc/self/status", want: []string{"0000000000000000"}},
			{name: "kept", config: map[string]any{"cap_drop": []string{"all"}, "cap_add": []string{"fowner", "CAP_MKNOD"}}, script: "grep CapEff /proc/self/status", want: []string{fmt.Sprintf("%016x", 1<<3|1<<27)}},
			{name: "privileges", config: map[string]any{"security_opt": []string{"no-new-privileges"}}, script: "grep NoNewPrivs /proc/self/status", want: []string{"NoNewPrivs:\t1"}},
		})
		if out, err := r.CLI("volume", "ls", "-q"); err != nil || strings.Contains(out, "anonymous-") {
			t.Errorf("volumes %q, %v: those without a name are left", out, err)
		}
		r.nothingLeft()
	})
}

// TestLimits are those of a task, read from its cgroups.
func TestLimits(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, map[string]any{"pids_limit": 50})
		task := r.given("limits", "cat /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status; echo ready; sleep 1000", map[string]any{"cpu_hard_limit": true, "cpu_cfs_period": 50000, "cpuset_cpus": "0", "pids_limit": 40})
		task.Resources.AllocatedResources.Memory.MemoryMaxMb = 128
		r.start(task)
		file := filepath.Join(r.dir, allocID, "alloc/logs/limits.stdout.0")
		r.eventuallyIn(file, "ready")
		out, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), "Cpus_allowed_list:\t0\n") {
			t.Errorf("its CPUs: %s", out)
		}
		for _, l := range []figure{
			{"memory", "memory.limit_in_bytes", "memory.max", "134217728", "134217728"},
			{"memory", "memory.soft_limit_in_bytes", "memory.low", "67108864", "67108864"},
			{"pids", "pids.max", "pids.max", "40", "40"},
			{"cpu", "cpu.shares", "cpu.weight", "100", "4"},
			{"cpu", "cpu.cfs_period_us", "cpu.max", "50000", fmt.Sprintf("%d 50000", quota())},
			{"cpu", "cpu.cfs_quota_us", "cpu.max", fmt.Sprint(quota()), fmt.Sprintf("%d 50000", quota())},
		} {
			if got, want := l.read(t, string(out)); got != want {
				t.Errorf("%s is %q, want %q", l.v1, got, want)
			}
		}
		r.destroy(task)
		r.nothingLeft()
	})
}

// quota is a twentieth of this node in a period of 50 ms.
func quota() int { return 50000 * runtime.NumCPU() / 20 }

// figure is a limit, as cgroup v1 has it and as v2 does.
type figure struct{ controller, v1, v2, want1, want2 string }

// read reads it from the cgroup in text, a /proc/PID/cgroup, and returns the expected value,
// too.
func (l figure) read(t *testing.T, text string) (got, want string) {
	t.Helper()
	file := ""
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) == 3 && f[1] == l.controller:
			file, want = filepath.Join("/sys/fs/cgroup", l.controller, f[2], l.v1), l.want1
		case len(f) == 3 && f[0] == "0" && file == "":
			file, want = filepath.Join("/sys/fs/cgroup", f[2], l.v2), l.want2
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(b)), want
}

// TestWhoseNetwork: the node's, that of the task's group, and a bridge.
func TestWhoseNetwork(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if _, err := exec.LookPath("ip"); err != nil {
			t.Skip("no iproute2")
		}
		r := newRig(t, nil)
		for _, args := range []string{"netns add group", "-n group link add eth0 type veth peer name eth1", "-n group addr add 192.0.2.20/24 dev eth0", "-n group link set eth0 up"} {
			if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", args, err, out)
			}
		}
		out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", "group", "readlink", "/proc/self/ns/net").Output()
		if err != nil {
			t.Fatal(err)
		}
		own, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		group := func(t *nomaddriver.TaskConfig) {
			t.NetworkIsolationSpec = &nomaddriver.NetworkIsolationSpec{Mode: nomaddriver.NetworkIsolationSpec_GROUP, Path: "/var/run/netns/group"}
		}
		const look = "readlink /proc/self/ns/net"
		r.answers([]asks{
			{name: "host", script: look, want: []string{own}},
			{name: "group", change: group, script: look, want: []string{strings.TrimSpace(string(out))}},
			{name: "named", change: group, script: "grep named /etc/hosts", want: []string{"192.0.2.20\tnamed\n"}},
			{name: "apart", change: group, config: map[string]any{"network_mode": "host"}, script: look, want: []string{own}},
		})
		// A job for docker's driver expects a network of its own when it says nothing,
		// and an image's name may begin as a URL.
		r.Client = r.plugin(nil, "-name=docker")
		r.answers([]asks{
			{
				name: "docker", config: map[string]any{"image": "https://" + r.image},
				script: "test $(readlink /proc/self/ns/net) != " + own + " && ip -o -4 addr show eth0", want: []string{"eth0"},
			},
			{name: "grouped", change: group, script: look, want: []string{strings.TrimSpace(string(out))}},
		})
		r.nothingLeft()
	})
}
