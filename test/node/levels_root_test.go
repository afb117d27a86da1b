package node

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// levelTries tries calls that levels forbid and others that they must allow, one per line.
const levelTries = `try() { n=$1; shift; if sh -c "$*" >/dev/null 2>&1; then echo "$n yes"; else echo "$n no"; fi; }
try etc 'echo x > /etc/new'
try bin 'cp /bin/sh /bin/other'
try rename 'mv /etc/passwd /etc/gone && mv /etc/gone /etc/passwd'
try truncate ': > /etc/group'
try top 'mkdir /top'
try tmp 'echo x > /tmp/f && mkdir -p /tmp/d && mv /tmp/f /tmp/d/f'
try var 'mkdir -p /var/lib/app && echo x > /var/lib/app/f'
try volume 'echo x > /data/f'
try null 'echo x > /dev/null && cat /dev/null'
try proc 'echo 0 > /proc/self/oom_score_adj'
try runs '/bin/true'
try tmpexec 'cp /bin/busybox /tmp/true && chmod 755 /tmp/true && /tmp/true'
try volexec 'cp /bin/busybox /data/true && chmod 755 /data/true && /data/true'
try shm 'cp /bin/busybox /dev/shm/true && chmod 755 /dev/shm/true && /dev/shm/true'
try remount 'mount -o remount,exec /data'
try mount 'mount -t tmpfs none /var/lib'
`

// TestLevelsOfLandlock: a level restricts the program and its execs, also as root, with CAP_SYS_ADMIN and in a user
// namespace, and forbids nothing else.
func TestLevelsOfLandlock(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		want := func(changes, data, tmpexec, volexec, mounts string) string {
			out := ""
			for name, v := range map[string]string{
				"etc": changes, "bin": changes, "rename": changes, "truncate": changes, "top": changes, "tmp": data, "var": data, "volume": "yes", "null": "yes", "proc": "yes",
				"runs": "yes", "tmpexec": tmpexec, "volexec": volexec, "shm": "no", "remount": mounts, "mount": mounts,
			} {
				out += name + " " + v + "\n"
			}
			return out
		}
		same := func(a, b string) bool { return len(a) == len(b) && sorted(a) == sorted(b) }
		for _, c := range []struct{ levels, want string }{
			{"", want("yes", "yes", "yes", "yes", "no")},
			{"read-only-system", want("no", "yes", "yes", "yes", "no")},
			{"no-exec-from-writable", want("no", "yes", "no", "no", "no")},
			{"no-network-bind", want("yes", "yes", "yes", "yes", "no")},
		} {
			for kind, more := range map[string][]string{"host's users": nil, "user namespace": {"--userns", "auto"}, "sys_admin": {"--cap-add", "SYS_ADMIN"}} {
				args := append([]string{"run", "--rm", "-v", "data:/data"}, more...)
				if c.levels != "" {
					args = append(args, "--security-opt", "landlock="+c.levels)
				}
				expected := c.want
				if c.levels == "" || c.levels == "no-network-bind" {
					if kind == "sys_admin" { // the control: only the levels forbid it
						expected = want("yes", "yes", "yes", "yes", "yes")
					}
				}
				out, err := n.CLI(append(args, image, "/bin/sh", "-c", levelTries)...)
				if err != nil || !same(out, expected) {
					t.Errorf("%q, %s: %v\n%s\nwant\n%s", c.levels, kind, err, sorted(out), sorted(expected))
				}
			}
		}
		listens := `nc -l -p 8080 & p=$!; for i in 1 2 3 4 5 6 7 8 9 10; do grep -q :1F90 /proc/net/tcp /proc/net/tcp6 && break; kill -0 $p 2>/dev/null || break; usleep 20000; done
			grep -q :1F90 /proc/net/tcp /proc/net/tcp6 && echo listens; kill $p 2>/dev/null; true`
		for levels, want := range map[string]string{"": "listens\n", "read-only-system": "listens\n", "no-network-bind": ""} {
			args := []string{"run", "--rm"}
			if levels != "" {
				args = append(args, "--annotation", "longshore.landlock="+levels)
			}
			if out, err := n.CLI(append(args, image, "/bin/sh", "-c", listens)...); err != nil || !strings.HasSuffix(out, want) || want == "" && strings.Contains(out, "listens") {
				t.Errorf("%q: %q, %v", levels, out, err)
			}
		}

		cfg := n.PodConfig("levels")
		cfg.Annotations = map[string]string{"longshore.landlock": "no-network-bind", "longshore.landlock/strict": "no-exec-from-writable"}
		pod := n.RunPod(t, cfg)
		strict := pod.Run(t, nodetest.ContainerConfig("strict", image, "/bin/sleep", "1000"))
		other := pod.Run(t, nodetest.ContainerConfig("other", image, "/bin/sleep", "1000"))
		for _, c := range []struct {
			*nodetest.Container
			levels, want string
		}{
			{strict, `"levels":["read-only-system","no-exec-from-writable"]`, "etc no tmp yes tmpexec no"},
			{other, `"levels":["no-network-bind"]`, "etc yes tmp yes tmpexec yes"},
		} {
			r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/sh", "-c", strings.Join(strings.SplitAfter(levelTries, "\n")[:8], "") + "mkdir -p /data\n" + levelTries[strings.Index(levelTries, "try tmpexec"):]}, Timeout: 60})
			got := ""
			for _, name := range []string{"etc", "tmp", "tmpexec"} {
				for line := range bytes.Lines(r.GetStdout()) {
					if v, ok := strings.CutPrefix(strings.TrimSpace(string(line)), name+" "); ok {
						got = strings.TrimSpace(fmt.Sprint(got, " ", name, " ", v))
					}
				}
			}
			if err != nil || got != c.want {
				t.Errorf("exec: %q, %v, want %q: %s %s", got, err, c.want, r.GetStdout(), r.GetStderr())
			}
			st, err := n.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
			if err != nil || !strings.Contains(st.GetInfo()["info"], c.levels) {
				t.Errorf("inspect does not show %s: %v, %s", c.levels, err, st.GetInfo()["info"])
			}
		}
		pod.Remove(t)

		if out, err := n.CLI("run", "--rm", "--security-opt", "landlock=everything", image, "/bin/true"); err == nil || !strings.Contains(err.Error()+out, "read-only-system") {
			t.Errorf("an unknown level: %q, %v", out, err)
		}
		if out, err := n.CLI("volume", "rm", "data"); err != nil {
			t.Errorf("%s, %v", out, err)
		}
		clean(t, n)
	})
}

func sorted(lines string) string {
	all := strings.Split(strings.TrimSpace(lines), "\n")
	slices.Sort(all)
	return strings.Join(all, "\n")
}
