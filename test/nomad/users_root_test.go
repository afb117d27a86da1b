package nomad

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/roottest"
)

// firstID is where the test's ranges begin.
const firstID = 300000

// TestATaskInAUserNamespace: root inside is nobody outside, files from Nomad and the job keep
// their owners inside, and two tasks have nothing in common.
func TestATaskInAUserNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, map[string]any{"volumes": map[string]any{"enabled": true}, "userns": map[string]any{"first_id": firstID, "ranges": 2}})
		host := t.TempDir()
		if err := os.WriteFile(filepath.Join(host, "from"), []byte("from the host\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(r.dir, allocID, "alloc/data"), 0o777); err != nil {
			t.Fatal(err)
		}
		const look = `tr -s ' ' < /proc/self/uid_map; id -u; stat -c %u /bin /alloc /local /secrets; cat /job/from /nomads/from
			touch /local/made /alloc/data/$NOMAD_TASK_NAME; chown 33 /local/made; mount -t tmpfs x /tmp 2>/dev/null || echo no mount; hostname; ls /sys/class/net | sort
			touch /alloc/logs/x 2>/dev/null || echo no logs; test -r /proc/self/cgroup && echo cgroup; echo own > /proc/sys/net/core/somaxconn 2>/dev/null || echo no sysctl; cat /image/bin/busybox | wc -c
			echo by $NOMAD_TASK_NAME >> /etc/kept; chown 44 /etc/kept; stat -c '%u %n' /etc/passwd /etc/kept; cat /etc/kept`
		want := []string{fmt.Sprintf(" 0 %d 65536\n0\n0\n0\n0\n0\nfrom the host\nfrom the host\n", firstID), "no mount\n", "lo\n", "no logs\ncgroup\nno sysctl\n", "0 /etc/passwd\n44 /etc/kept\nby hosts\n"}
		config := func(more ...any) map[string]any {
			m := map[string]any{"userns_mode": "auto", "mount": []any{
				map[string]any{"type": "bind", "source": host, "target": "/job"},
				map[string]any{"type": "image", "source": r.image, "target": "/image"},
				map[string]any{"type": "volume", "source": "kept", "target": "/etc"},
			}}
			for i := 0; i < len(more); i += 2 {
				m[more[i].(string)] = more[i+1]
			}
			return m
		}
		volume := func(t *nomaddriver.TaskConfig) {
			t.Mounts = []*nomaddriver.Mount{{TaskPath: "/nomads", HostPath: host}}
		}
		r.answers([]asks{ // one after the other
			{name: "hosts", config: config(), change: volume, script: look, want: want},
			{name: "none", config: config("network_mode", "none", "hostname", "box"), change: volume, script: look, want: append(want, "box\nlo\n")},
			{name: "bridge", config: config("network_mode", "bridge"), change: volume, script: look, want: append(want, "eth0\nlo\n")},
			{name: "group", config: config(), change: func(task *nomaddriver.TaskConfig) {
				volume(task)
				resp, err := r.Driver.CreateNetwork(t.Context(), &nomaddriver.CreateNetworkRequest{AllocId: allocID})
				if err != nil {
					t.Fatal(err)
				}
				task.NetworkIsolationSpec = resp.GetIsolationSpec()
			}, script: look + "; ip -o link | wc -l", want: append(want, "\n1\n")},
			{name: "other", config: config("readonly_rootfs", true, "init", true), change: func(task *nomaddriver.TaskConfig) { volume(task); task.User = "33" }, script: "id -u; cat /proc/self/uid_map; touch /alloc/data/by33", want: []string{"33\n", "300000"}},
		})
		for file, owner := range map[string]uint32{"hosts/local/made": 33, "alloc/data/bridge": 0, "alloc/data/by33": 33} {
			st, err := os.Stat(filepath.Join(r.dir, allocID, file))
			if err != nil {
				t.Error(err)
			} else if got := st.Sys().(*syscall.Stat_t).Uid; got != owner {
				t.Errorf("%s is %d's outside, want %d", file, got, owner)
			}
		}
		if _, err := r.Driver.DestroyNetwork(t.Context(), &nomaddriver.DestroyNetworkRequest{AllocId: allocID}); err != nil {
			t.Error(err)
		}
		r.answers([]asks{{ // the volume's files have their owners without a user namespace too
			name: "without", config: map[string]any{"mount": []any{map[string]any{"type": "volume", "source": "kept", "target": "/etc"}}},
			script: "cat /proc/self/uid_map | wc -w; stat -c '%u %n' /etc/passwd /etc/kept", want: []string{"0 /etc/passwd\n44 /etc/kept\n"},
		}})
		r.rangesAreApart()
		r.nothingLeft()
	})
}

// rangesAreApart starts two tasks, with the agent's death between them, and a third without a
// range left.
func (r *rig) rangesAreApart() {
	r.t.Helper()
	const script = "cat /proc/self/uid_map > /alloc/data/map-$NOMAD_TASK_NAME; exec sleep 1000"
	config := map[string]any{"userns_mode": "private"}
	first, second, third := r.given("first", script, config), r.given("second", script, config), r.given("third", script, config)
	r.start(first)
	r.Kill()
	r.Up()
	r.start(second)
	for i, t := range []*nomaddriver.TaskConfig{first, second} {
		r.eventuallyIn(filepath.Join(r.dir, allocID, "alloc/data/map-"+t.GetName()), fmt.Sprint(firstID+i*65536))
	}
	if _, err := r.Driver.StartTask(r.t.Context(), &nomaddriver.StartTaskRequest{Task: third}); err == nil || !strings.Contains(err.Error(), "userns.ranges") {
		r.t.Errorf("a third task: %v", err)
	}
	r.destroy(first)
	r.start(third)
	r.eventuallyIn(filepath.Join(r.dir, allocID, "alloc/data/map-third"), fmt.Sprint(firstID))
	s := r.talk(third.GetId(), false, "id -u; cat /proc/self/uid_map; touch /local/by-exec")
	if s.result.GetExitCode() != 0 || !strings.HasPrefix(s.stdout, "0\n") || !strings.Contains(s.stdout, fmt.Sprint(firstID)) {
		r.t.Errorf("an exec: %+v", s)
	}
	r.destroy(second)
	r.destroy(third)
}
