package node

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// mappedRoot is the host's uid for root of the test's user namespace.
const mappedRoot = 524288

// TestNobodySearchesTheNode: another user of the host, with every name below the node's
// directories, can neither see, read, run nor connect to anything in them, also while a
// container in a user namespace runs; nor can that container's root, should it get out. With
// the modes that the directories once had, a setuid file of a container makes such a user root:
// the control.
func TestNobodySearchesTheNode(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-node-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil { // as /run and /var/lib are
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{Dir: dir, Config: "[face.mesos]\nenabled = true\n"})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("plain"))
		given := filepath.Join(dir, "given") // not busybox, which drops the privileges of the bit
		copyFile(t, "/usr/bin/id", given)
		cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", "cp /given /id && chmod 4755 /id && echo ready; exec sleep 1000")
		cfg.Mounts = []*runtimeapi.Mount{{HostPath: given, ContainerPath: "/given", Readonly: true}}
		c := pod.Run(t, cfg)
		nodetest.Eventually(t, "the setuid file is there", func() bool { return strings.Contains(c.ReadLog(t), "ready") })
		mapped := n.RunPod(t, mappedPod(n, "mapped"))
		cfg = nodetest.ContainerConfig("c", image, "/bin/sleep", "1000")
		cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: mapped.Config.Linux.SecurityContext.NamespaceOptions}
		mapped.Run(t, cfg)
		if _, err := n.CLI("run", "-d", "--name", "v", "-v", "data:/data", image, "/bin/sleep", "1000"); err != nil {
			t.Fatal(err)
		}
		suid := filepath.Join(n.State, "bundles", c.ID, "rootfs", "id")
		if st, err := os.Stat(suid); err != nil || st.Mode()&os.ModeSetuid == 0 {
			t.Fatalf("%s: %v, %v", suid, st, err)
		}
		everything := below(t, n.Root, n.State)
		if len(everything) < 100 {
			t.Fatalf("only %d files are there", len(everything))
		}
		for _, uid := range []uint32{65534, mappedRoot} {
			if seen := asUser(t, uid, lookAround, strings.Join(everything, "\n")+"\n"); seen != "" {
				t.Errorf("user %d sees\n%s", uid, seen)
			}
			if out, err := runAs(t, uid, suid+" -u", ""); err == nil {
				t.Errorf("user %d ran a container's file: %s", uid, out)
			}
		}
		// The control.
		for _, d := range []string{n.State, filepath.Join(n.State, "bundles"), filepath.Join(n.State, "bundles", c.ID)} {
			if err := os.Chmod(d, 0o711); err != nil {
				t.Fatal(err)
			}
		}
		if seen := asUser(t, 65534, lookAround, strings.Join(everything, "\n")+"\n"); !strings.Contains(seen, suid+"\n") {
			t.Errorf("with the modes of old nobody sees\n%s", seen)
		}
		if out := asUser(t, 65534, "exec "+suid+" -u", ""); strings.TrimSpace(out) != "0" {
			t.Errorf("with the modes of old nobody is %s", out)
		}
		// An agent that comes to directories like these closes them.
		n.Kill()
		n.Up()
		if out, err := runAs(t, 65534, suid+" -u", ""); err == nil {
			t.Errorf("after a restart nobody ran a container's file: %s", out)
		}
		if _, err := n.CLI("rm", "-f", "v"); err != nil {
			t.Error(err)
		}
		pod.Remove(t)
		mapped.Remove(t)
		clean(t, n)
	})
}

// lookAround says which of the paths that it reads this user can see, and which of
// the directories above them all it can search, read or write.
const lookAround = `while read -r p; do
	case $p in
	top:*) p=${p#top:}; for m in r w x; do test -$m $p && echo "$m $p"; done;;
	*) if test -e "$p" || test -L "$p"; then echo "$p"; fi;;
	esac
done; :`

// below lists all that is below dirs, and those themselves as top:DIR.
func below(t *testing.T, dirs ...string) (all []string) {
	t.Helper()
	for _, dir := range dirs {
		all = append(all, "top:"+dir)
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && path != dir {
				all = append(all, path)
			}
			return nil // a file that goes meanwhile cannot be seen
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func mappedPod(n *nodetest.Node, name string) *runtimeapi.PodSandboxConfig {
	ids := []*runtimeapi.IDMapping{{HostId: mappedRoot, ContainerId: 0, Length: 65536}}
	cfg := n.PodConfig(name)
	cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	return cfg
}

// runAs runs a script as another user of the host, in the group of that number and no other.
func runAs(t *testing.T, uid uint32, script, input string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/busybox", "sh", "-c", script)
	cmd.Dir, cmd.Stdin = "/", strings.NewReader(input)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// asUser is runAs of a script that must succeed.
func asUser(t *testing.T, uid uint32, script, input string) string {
	t.Helper()
	out, err := runAs(t, uid, script, input)
	if err != nil {
		t.Fatalf("as user %d: %v: %s", uid, err, out)
	}
	return out
}
