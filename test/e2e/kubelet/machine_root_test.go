package kubelet

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRestart: containers run on when agent and kubelet are restarted, in either order and
// together.
func TestRestart(t *testing.T) { isolated(t, restart) }

func restart(t *testing.T) {
	n := start(t, options{})
	p := pod("stays", shell("main", "echo up; "+idle))
	p.Spec.Containers[0].LivenessProbe = probe(command("true"), 3)
	before := status(n.run(t, p), "main")
	for name, again := range map[string]func(){
		"agent": func() { n.Stop(); n.Up() },
		"kubelet": func() {
			n.kubeletDown(syscall.SIGTERM)
			n.kubeletUp()
		},
		"both": func() {
			n.kubeletDown(syscall.SIGTERM)
			n.Stop()
			n.Up()
			n.kubeletUp()
		},
	} {
		again()
		n.wait(t, "stays", "is ready after the restart of "+name, ready)
		n.add(t, once("new-"+name, "true"))
		n.ended(t, "new-"+name)
		if s := status(n.pod(t, "stays"), "main"); s.RestartCount != 0 || s.ContainerID != before.ContainerID || !s.State.Running.StartedAt.Equal(&before.State.Running.StartedAt) {
			t.Errorf("after the restart of %s: %+v", name, s)
		}
	}
	contains(t, n.output(t, "stays", "main", ""), "up\n")
	n.Check()
}

// TestReboot: a pod runs again after all processes ended and the state of the boot is gone.
func TestReboot(t *testing.T) { isolated(t, reboot) }

func reboot(t *testing.T) {
	n := start(t, options{})
	p := share(pod("back", shell("main", "echo life >>/share/lives; cat /share/lives; "+idle)), hostPath(n.Dir))
	before := status(n.run(t, p), "main")
	n.kubeletDown(syscall.SIGKILL)
	n.Kill()
	nodetest.KillTogether(t, nodetest.Pair("")...)
	for _, pid := range nodetest.Processes("busybox", "") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, dir := range []string{n.State, n.root} {
		unmountBelow(t, dir)
	}
	if err := os.RemoveAll(n.State); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(n.State, 0o700); err != nil {
		t.Fatal(err)
	}
	n.Up()
	n.kubeletUp()
	after := n.wait(t, "back", "runs in a new container", func(p *corev1.Pod) bool {
		return ready(p) && status(p, "main").ContainerID != before.ContainerID
	})
	if s := status(after, "main"); s.RestartCount > 1 {
		t.Errorf("it was started %d times again", s.RestartCount)
	}
	n.said(t, "back", "main", "life\nlife\n")
	n.Check()
}

// images are the names of the runtime's images.
func (n *node) images(t *testing.T) []string {
	t.Helper()
	r, err := n.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range r.GetImages() {
		names = append(names, i.GetRepoTags()...)
	}
	return names
}

// TestImageGC: the kubelet must keep the images' own file system freer than it is, and removes the
// images that no pod has, and nothing else.
func TestImageGC(t *testing.T) { isolated(t, imageGC) }

func imageGC(t *testing.T) {
	var store string
	n := start(t, options{config: map[string]any{"imageMinimumGCAge": "1ms"}, mount: func(dir string) {
		store = filepath.Join(dir, "root")
		mkdir(t, store)
		if err := unix.Mount("tmpfs", store, "tmpfs", 0, "size=1g"); err != nil {
			t.Fatal(err)
		}
	}})
	n.run(t, pod("uses", shell("main", idle)))
	for i := range 3 {
		name := fmt.Sprintf("unused-%d", i)
		n.Registry.Push(name, "1", imageWith(t, name))
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "registry.example/" + name + ":1"}}); err != nil {
			t.Fatal(err)
		}
	}
	if all := n.images(t); len(all) != 4 {
		t.Fatalf("the images are %v", all)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(store, &st); err != nil {
		t.Fatal(err)
	}
	n.kubeletDown(syscall.SIGTERM)
	hard := maps.Clone(n.config["evictionHard"].(map[string]string))
	hard["imagefs.available"] = fmt.Sprint(st.Bavail*uint64(st.Bsize) + 8<<20)
	n.config["evictionHard"] = hard
	n.kubeletUp()
	nodetest.Eventually(t, "the unused images are gone", func() bool { return slices.Equal(n.images(t), []string{busybox}) })
	if s := status(n.wait(t, "uses", "is ready", ready), "main"); s.RestartCount != 0 {
		t.Errorf("%+v", s)
	}
}

// TestEvictionSignals: pods use more than the node permits, and the kubelet sees it in the
// runtime's figures and picks the right one. It evicts none, as it holds every static pod for
// critical, and says so.
func TestEvictionSignals(t *testing.T) { isolated(t, evictionSignals) }

func evictionSignals(t *testing.T) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	// All but 400 MiB is the system's. Pods must leave 150 MiB of the rest free.
	reserved := uint64(info.Totalram)*uint64(info.Unit) - 400<<20
	n := start(t, options{config: map[string]any{
		"featureGates":                     map[string]bool{"EventedPLEG": true, "PodAndContainerStatsFromCRI": true},
		"systemReserved":                   map[string]string{"memory": fmt.Sprint(reserved)},
		"evictionHard":                     map[string]string{"memory.available": "150Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%"},
		"evictionPressureTransitionPeriod": "1s",
	}})
	n.run(t, pod("bystander", shell("main", idle)))
	t.Run("figures", func(t *testing.T) { n.figures(t, true) })
	t.Run("memory", func(t *testing.T) {
		n.run(t, pod("eats", shell("main", "exec subject eat 300")))
		n.complains(t, `pods ranked for eviction" pods=["default/eats-node","default/bystander-node"]`)
		n.complains(t, critical("eats"))
	})
	t.Run("a container's disk", func(t *testing.T) {
		n.run(t, small("fills", "dd if=/dev/zero of=/file bs=1M count=40; "+idle))
		n.complains(t, critical("fills"))
	})
	t.Run("logs", func(t *testing.T) {
		n.run(t, small("writes", "yes 012345678901234567890123456789012345678901234567890123456789 | head -n 400000; "+idle))
		n.complains(t, critical("writes"))
	})
	t.Run("an emptyDir", func(t *testing.T) {
		n.run(t, share(pod("stuffs", shell("main", "dd if=/dev/zero of=/share/file bs=1M count=40; "+idle)),
			corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("20Mi"))}}))
		n.complains(t, critical("stuffs"))
	})
	if s := status(n.wait(t, "bystander", "is ready", ready), "main"); s.RestartCount != 0 {
		t.Errorf("%+v", s)
	}
}

// critical returns the kubelet's log text for a static pod that it would evict.
func critical(name string) string {
	return fmt.Sprintf(`cannot evict a critical pod" pod="default/%s-node"`, name)
}

// small is a pod that may have 20 MiB of the disk.
func small(name, script string) *corev1.Pod {
	p := pod(name, shell("main", script))
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("20Mi")}
	return p
}

// complains waits until the kubelet has logged a text.
func (n *node) complains(t *testing.T, text string) {
	t.Helper()
	nodetest.Eventually(t, "the kubelet says "+text, func() bool {
		b, err := os.ReadFile(n.log.Name())
		return err == nil && strings.Contains(string(b), text)
	})
}
