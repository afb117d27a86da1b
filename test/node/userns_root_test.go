package node

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestUserNamespaces: containers with user namespaces of their own have ids that no other one has, see
// their images' and volumes' files as their own, and an image made of one has the owners seen there.
func TestUserNamespaces(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		say := func(args ...string) string {
			t.Helper()
			return strings.TrimSpace(v.must(t, args...))
		}
		const look = "stat -c '%n %u:%g' /bin /data /data/f /made /made/by1 2>&1"
		say("run", "-d", "--name", "a", "--userns", "private", "-v", "data:/data", v.image, "/bin/sh", "-c", "mkdir /made && touch /made/by1 /data/f && chown 1:1 /made/by1 && exec sleep 1000")
		roottest.Eventually(t, "it is ready", func() bool {
			_, err := v.CLI("exec", "a", "/bin/sh", "-c", "test $(stat -c %u /made/by1) = 1")
			return err == nil
		})
		say("run", "-d", "--name", "b", "--userns=auto", "--volumes-from", "a:ro", v.image, "/bin/sleep", "1000")
		one, two := say("exec", "a", "/bin/cat", "/proc/self/uid_map"), say("exec", "b", "/bin/cat", "/proc/self/uid_map")
		if f := strings.Fields(one); one == two || len(f) != 3 || f[0] != "0" || f[1] == "0" || f[2] != "65536" {
			t.Errorf("mappings %q and %q", one, two)
		}
		const want = "/bin 0:0\n/data 0:0\n/data/f 0:0\n/made 0:0\n/made/by1 1:1"
		if got := say("exec", "a", "/bin/sh", "-c", look); got != want {
			t.Errorf("a sees %q", got)
		}
		if got := say("exec", "b", "/bin/sh", "-c", "stat -c '%n %u:%g' /bin /data/f; touch /data/g 2>&1; id -u"); !strings.HasPrefix(got, "/bin 0:0\n/data/f 0:0\n") || !strings.Contains(got, "Read-only") || !strings.HasSuffix(got, "\n0") {
			t.Errorf("b sees %q", got)
		}
		if got := say("diff", "a"); got != "A /made\nA /made/by1" {
			t.Errorf("diff: %q", got)
		}
		if got := say("inspect", "-f", "{{.HostConfig.UsernsMode}}", "a"); got != "private" {
			t.Errorf("inspect: %q", got)
		}
		say("commit", "a", "of-a")
		if got := say("run", "--rm", "-v", "data:/data", "of-a", "/bin/sh", "-c", look); got != want {
			t.Errorf("the image has %q", got)
		}
		say("restart", "-t", "0", "b")
		if again := say("exec", "b", "/bin/cat", "/proc/self/uid_map"); again != two {
			t.Errorf("after a restart %q is %q", two, again)
		}
		for flags, why := range map[string]string{
			"--userns=keep-id": "rootless podman", "--userns=container:a": "none of host, private, auto", "--userns=private --privileged": "privileged", "--userns=private --pid=host": "pid host",
			"--userns=private --network=host": "network host", "--volumes-from=nobody": "nobody", "--volumes-from=a:odd": "neither ro nor rw",
		} {
			out, err := v.CLI(append(append([]string{"create"}, strings.Fields(flags)...), v.image)...)
			if err == nil || !strings.Contains(err.Error()+out, why) {
				t.Errorf("%s: %s, %v", flags, out, err)
			}
		}
		say("rm", "-f", "a", "b")
		v.Check()
	})
}
