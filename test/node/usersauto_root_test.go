package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestUserNamespacesByDefault: with engine.userns = "auto" the sandboxes of each face have ids that no other one has, also after a
// restart of the agent; their files' owners look as without. Containers that need the node's ids have them.
func TestUserNamespacesByDefault(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		f := newUserFacesWith(t, "userns = \"auto\"\n")
		f.bridged = true
		theirs := t.TempDir()
		if err := os.WriteFile(filepath.Join(theirs, "of33"), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(theirs, "of33"), 33, 33); err != nil {
			t.Fatal(err)
		}
		cli := func(args ...string) string {
			t.Helper()
			out, err := f.n.CLI(args...)
			if err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			return strings.TrimSpace(out)
		}
		mapping := func(id string) string {
			t.Helper()
			return strings.Join(strings.Fields(cli("exec", "--force", id, "/bin/cat", "/proc/self/uid_map")), " ")
		}
		const host = "0 0 4294967295"
		owned := map[string]string{} // first id → its container
		ids := map[string]string{}   // container → mapping
		check := func(name, id string) {
			t.Helper()
			m := mapping(id)
			if other, ok := owned[m]; ok || m == host || !strings.HasSuffix(m, " 65536") {
				t.Errorf("%s has %q, as %q has", name, m, other)
			}
			owned[m], ids[id] = name, m
		}
		for face, start := range map[string]func(name, user string, nnp bool) made{"cli": f.byCLI, "cri": f.byCRI, "swarm": f.bySwarm, "nomad": f.byNomad, "mesos": f.byMesos} {
			c := start(face+"auto", "0", false)
			check(face, f.id(c.key))
		}
		cli("run", "-d", "--name", "bound", "-v", theirs+":/theirs", "-v", "data:/data", f.image, "/bin/sh", "-c", "echo new >/theirs/new; touch /data/new; chown 7:7 /data/new; exec sleep 1000")
		cli("run", "-d", "--name", "bound2", "--cap-add", "NET_ADMIN", "-v", theirs+":/theirs", "-v", "data:/data", f.image, "/bin/sleep", "1000")
		check("bound", "bound")
		check("bound2", "bound2")
		roottest.Eventually(t, "the files are made", func() bool {
			_, err := f.n.CLI("exec", "bound", "/bin/sh", "-c", "test -s /theirs/new && test $(stat -c %u /data/new) = 7")
			return err == nil
		})
		for _, c := range []string{"bound", "bound2"} {
			if got := cli("exec", c, "/bin/sh", "-c", "stat -c '%n %u:%g' /bin/busybox /theirs/of33 /theirs/new; stat -c '%u' /data/new /etc/hosts /dev/null; cat /theirs/of33"); got != "/bin/busybox 0:0\n/theirs/of33 33:33\n/theirs/new 0:0\n7\n0\n0\nkept" {
				t.Errorf("%s sees %q", c, got)
			}
		}
		apart := map[string][]string{
			"privileged": {"--privileged"}, "hostpid": {"--pid", "host"}, "hostnet": {"--network", "host"}, "asked": {"--userns", "host"}, "ipc": {"--ipc", "host"},
			"admin": {"--cap-add", "SYS_ADMIN"}, "joined": {"--network", "container:hostnet2"}, "joined2": {"--network", "container:bound", "--pid", "container:bound"}, "device": {"--device", "/dev/kmsg"}, "proc": {"-v", "/proc:/host/proc"},
		}
		cli("run", "-d", "--name", "hostnet2", "--userns", "host", f.image, "/bin/sleep", "1000")
		for name, flags := range apart {
			cli(append(append([]string{"run", "-d", "--name", name}, flags...), f.image, "/bin/sleep", "1000")...)
			if m := mapping(name); m != host {
				t.Errorf("%s has %q", name, m)
			}
			why := cli("inspect", "-f", "{{.Record.node_ids}}", name)
			if why == "" || !strings.Contains(f.n.Finding(t, "user namespaces"), name+" of cli: "+why) {
				t.Errorf("%s: inspect says %q, doctor %q", name, why, f.n.Finding(t, "user namespaces"))
			}
		}
		// A container of a pod that needs the node's ids has them; the pod's others do not.
		cfg := nodetest.ContainerConfig("needs", f.image, "/bin/sleep", "1000")
		cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}}
		f.pod.Run(t, cfg)
		if m := mapping(f.id("needs")); m != host {
			t.Errorf("a container with SYS_ADMIN of a pod in a user namespace has %q", m)
		}
		f.n.Kill()
		f.n.Up()
		for id, m := range ids {
			if got := mapping(id); got != m {
				t.Errorf("after a restart %s has %q, and had %q", owned[m], got, m)
			}
		}
		for i := range 3 {
			name := fmt.Sprintf("later%d", i)
			cli("run", "-d", "--name", name, f.image, "/bin/sleep", "1000")
			check(name, name)
		}
		freed := ids["later0"]
		cli("rm", "-f", "later0")
		delete(owned, freed)
		again := false
		for range 5 { // the lowest free ranges come in turn
			m := strings.Join(strings.Fields(cli("run", "--rm", f.image, "/bin/cat", "/proc/self/uid_map")), " ")
			if other, ok := owned[m]; ok {
				t.Errorf("another container has %q, as %q has", m, other)
			}
			again = again || m == freed
		}
		if !again {
			t.Errorf("the range %q is free, and no container has got it", freed)
		}
		cli("run", "-d", "--name", "next", f.image, "/bin/sleep", "1000")
		check("next", "next")
		cli("commit", "bound", "of-bound")
		cli("cp", "bound:/theirs/of33", filepath.Join(f.n.Dir, "copied"))
		if got := cli("run", "--rm", "--userns", "host", "of-bound", "/bin/stat", "-c", "%u", "/bin/busybox"); got != "0" {
			t.Errorf("the image's file has the owner %q", got)
		}
		cli("rm", "-f", "joined2") // its process is in the pid namespace of another
		f.n.Check()
	})
}
