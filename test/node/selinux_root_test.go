package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/profile/selinux"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// seLinux runs a test where the kernel enforces a policy with the types of containers. hack/vm.sh
// profiles boots such a machine.
func seLinux(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(roottest.Env) == "1" && !ocispec.SELinuxEnabled() {
		t.Skip("SELinux is off on this machine: see make vm-profiles")
	}
	roottest.Run(t, func(t *testing.T) {
		if err := unix.Mount("selinuxfs", "/sys/fs/selinux", "selinuxfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile("/sys/fs/selinux/enforce"); err != nil || string(b) != "1" {
			t.Skipf("SELinux does not enforce its policy: %q, %v", b, err)
		}
		if err := selinux.Usable("system_u:system_r:container_t:s0:c1,c2"); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the kernel's denials:\n%s", denials(t))
			}
		})
		body(t)
	})
}

// denials returns the lines of the kernel's log about refused operations.
func denials(t *testing.T) string {
	t.Helper()
	buf := make([]byte, 1<<20)
	n, err := unix.Klogctl(3, buf) // SYSLOG_ACTION_READ_ALL
	if err != nil {
		t.Fatal(err)
	}
	lines := ""
	for line := range strings.Lines(string(buf[:n])) {
		if strings.Contains(line, "avc: ") {
			lines += line
		}
	}
	return lines
}

// labelled is a node with labelled pods.
type labelled struct {
	*userFaces
	pods int
}

func (f *labelled) newPod(sc func(*runtimeapi.LinuxSandboxSecurityContext)) *nodetest.Pod {
	f.t.Helper()
	f.pods++
	cfg := f.n.PodConfig("pod" + string(rune('a'+f.pods)))
	if sc != nil {
		sc(cfg.Linux.SecurityContext)
	}
	return f.n.RunPod(f.t, cfg)
}

// run runs a container with a directory of the host at /host. An empty dir is no mount.
func (f *labelled) run(pod *nodetest.Pod, name, dir string, relabel bool, script string) *nodetest.Container {
	f.t.Helper()
	cfg := nodetest.ContainerConfig(name, f.image, "/bin/sh", "-c", script)
	if dir != "" {
		cfg.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/host", SelinuxRelabel: relabel}}
	}
	cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{Privileged: pod.Config.GetLinux().GetSecurityContext().GetPrivileged()}
	return pod.Run(f.t, cfg)
}

// tries returns the output of a script in a new container of the pod.
func (f *labelled) tries(pod *nodetest.Pod, name, dir, script string) string {
	f.t.Helper()
	c := f.run(pod, name, dir, false, script+" 2>&1")
	c.WaitExited(f.t)
	lines := ""
	for line := range strings.Lines(c.ReadLog(f.t)) {
		_, text, _ := strings.Cut(line, " F ")
		lines += text
	}
	return strings.TrimSpace(lines)
}

// levelOf returns the level of a container's program, which must have the type container_t.
func (f *labelled) levelOf(name string) string {
	f.t.Helper()
	label := f.labelOf(name)
	level, ok := strings.CutPrefix(label, "system_u:system_r:container_t:")
	if !ok || strings.Count(level, ",") != 1 {
		f.t.Errorf("%s: label %q", name, label)
	}
	return level
}

// TestSELinuxSeparatesPods: a pod's containers have a level that no other pod has. They cannot use the
// files of other pods and of the host, which a privileged container can.
func TestSELinuxSeparatesPods(t *testing.T) {
	seLinux(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Dir: labelledHome(t), Config: "[face.cri]\nselinux = true\n"})
		f := &labelled{userFaces: &userFaces{t: t, n: n, image: n.Busybox(t)}}
		host, shared := hostDir(t, n, "host"), hostDir(t, n, "shared")
		one, two := f.newPod(nil), f.newPod(nil)
		all := f.newPod(func(sc *runtimeapi.LinuxSandboxSecurityContext) { sc.Privileged = true })

		// The mount is relabelled for the first pod.
		first := f.run(one, "first", shared, true, "echo started; echo root >/tmp/file; echo shm >/dev/shm/file; cat /host/file; echo more >/host/more; exec sleep 1000")
		f.run(one, "second", "", false, "exec sleep 1000")
		f.run(two, "third", "", false, "exec sleep 1000")
		if st := first.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("the first container: %v", st)
		}
		a, b, c := f.levelOf("first"), f.levelOf("second"), f.levelOf("third")
		if a != b || a == c {
			t.Errorf("levels %s and %s in one pod, %s in another one", a, b, c)
		}
		roottest.Eventually(t, "the first container has read its mount", func() bool { return strings.Contains(first.ReadLog(t), "content") })
		if log := first.ReadLog(t); !strings.Contains(log, "started") || strings.Contains(log, "denied") {
			t.Errorf("the first container wrote %q", log)
		}
		if got := f.cli("exec", "--force", f.id("first"), "/bin/cat", "/proc/self/attr/current"); strings.TrimRight(got, "\x00") != "system_u:system_r:container_t:"+a {
			t.Errorf("an exec has the label %q", got)
		}
		if got := f.tries(one, "shm", "", "cat /dev/shm/file; id -u; cat /etc/hosts >/dev/null && echo hosts"); got != "shm\n0\nhosts" {
			t.Errorf("another container of the pod: %q", got)
		}
		roots, err := filepath.Glob(filepath.Join(n.State, "*", "*", first.ID, "rootfs"))
		if err != nil || len(roots) == 0 {
			roots, err = filepath.Glob(filepath.Join(n.State, "*", first.ID, "rootfs"))
		}
		if err != nil || len(roots) != 1 {
			t.Fatalf("the first container's root: %q, %v", roots, err)
		}

		const denied = "Permission denied"
		for name, c := range map[string]struct {
			pod                  *nodetest.Pod
			dir, script, allowed string
		}{
			"the host's file":                   {one, host, "head -n 1 /host/file", "content"},
			"the host's directory":              {one, host, "touch /host/new && echo made", "made"},
			"a write to the host's file":        {one, host, "echo x >>/host/file && echo written", "written"},
			"another pod's volume":              {two, shared, "head -n 1 /host/file", "content"},
			"a write to another pod's volume":   {two, shared, "echo x >>/host/file && echo written", "written"},
			"a file that another pod has made":  {two, shared, "cat /host/more", "more"},
			"another container's root":          {two, roots[0], "cat /host/tmp/file", "root"},
			"the listing of another's root":     {two, roots[0], "ls /host/tmp", "file"},
			"a removal in another pod's volume": {two, shared, "rm /host/more && echo removed", "removed"},
		} {
			key := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", "")
			refused, free := f.tries(c.pod, "try-"+key, c.dir, c.script), f.tries(all, "control-"+key, c.dir, c.script)
			t.Logf("%-35s container_t: %q, privileged: %q", name, refused, free)
			if !strings.Contains(refused, denied) || free != c.allowed {
				t.Errorf("%s: %q, and %q of the control", name, refused, free)
			}
			if name == "a removal in another pod's volume" {
				if err := os.WriteFile(filepath.Join(shared, "more"), []byte("more\n"), 0o666); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := f.tries(one, "own", shared, "cat /host/file | head -n 1"); got != "content" {
			t.Errorf("the pod's own volume: %q", got)
		}

		cfg := nodetest.ContainerConfig("stranger", f.image, "/bin/true")
		cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Type: "stranger_t"}}
		// A policy that does not have the type refuses it at the create.
		made, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: one.ID, Config: cfg, SandboxConfig: one.Config})
		if err == nil {
			_, err = n.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()})
		}
		if err == nil {
			t.Error("a type that may not run a container's program has run one")
		}
		chosen := f.newPod(func(sc *runtimeapi.LinuxSandboxSecurityContext) {
			sc.SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0:c5,c6"}
		})
		f.run(chosen, "chosen", "", false, "echo x >/tmp/x && exec sleep 1000")
		if got := f.levelOf("chosen"); got != "s0:c5,c6" {
			t.Errorf("the requested level is %s", got)
		}

		if _, err := n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.PodConfig("other"), RuntimeHandler: "crun"}); err == nil || !strings.Contains(err.Error(), "only the runtime native") {
			t.Errorf("a labelled pod of crun: %v", err)
		}

		// The next agent knows the levels.
		n.Kill()
		n.Up()
		f.run(one, "later", "", false, "exec sleep 1000")
		if got := f.levelOf("later"); got != a {
			t.Errorf("after the agent's restart the pod's level is %s, was %s", got, a)
		}
		if got := n.Finding(t, "confinement"); !strings.Contains(got, "SELinux (all pods)") {
			t.Errorf("doctor: %s", got)
		}
		n.Check()
	})
}
