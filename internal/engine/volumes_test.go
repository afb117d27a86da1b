package engine_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// share is a volume that is mounted, with a password.
func share() map[string]string {
	return map[string]string{"type": "cifs", "device": "//127.0.0.1/s", "o": "username=u,password=hunter2"}
}

// user makes a container that uses volumes.
func user(t *testing.T, n *enginetest.Node, sb core.Sandbox, key string, uses ...core.VolumeMount) (core.Container, error) {
	t.Helper()
	img := n.AddImage("busybox", ocispec.ImageConfig{}, map[string]string{"data/seed": "image's"})
	return n.As(sb.Owner).CreateContainer(t.Context(), core.ContainerConfig{
		Key: core.Key(key), Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep"), Volumes: uses,
	})
}

func mountedVolumes(t *testing.T, n *enginetest.Node) []string {
	t.Helper()
	list, err := n.Roots.Mounted(t.Context(), filepath.Join(n.Options.State, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestAVolumeIsMountedWhileContainersUseIt: with the first container, until the last is removed.
func TestAVolumeIsMountedWhileContainersUseIt(t *testing.T) {
	n := enginetest.New(t)
	sb := n.Pod(core.OwnerCRI, "pod")
	first, err := user(t, n, sb, "first", core.VolumeMount{Name: "v", Target: "/data", Options: share()}, core.VolumeMount{Name: "v", Target: "/again", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(n.Options.State, "volumes/cri/v")
	if got := mountedVolumes(t, n); !slices.Equal(got, []string{dir}) {
		t.Fatalf("mounted: %v", got)
	}
	spec := n.Runtime.Spec(first.ID)
	for target, mode := range map[string]string{"/data": "rw", "/again": "ro"} {
		if !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool {
			return m.Destination == target && m.Source == dir && slices.Contains(m.Options, mode)
		}) {
			t.Errorf("%s: %+v", target, spec.Mounts)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "seed")); err != nil || string(b) != "image's" {
		t.Errorf("an empty volume: %q, %v", b, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "seed"), []byte("ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := user(t, n, sb, "second", core.VolumeMount{Name: "v", Target: "/data"}) // as it is
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "seed")); err != nil || string(b) != "ours" {
		t.Errorf("a volume with content: %q, %v", b, err)
	}
	client := n.As(core.OwnerCRI)
	list, err := client.Volumes.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Path != dir || list[0].Options["o"] != "username=u,password=<hidden>" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := client.Volumes.Remove(t.Context(), "v"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a volume in use is removed: %v", err)
	}
	for i, c := range []core.Container{first, second} {
		if got := mountedVolumes(t, n); len(got) != 1 {
			t.Fatalf("with %d removed, mounted: %v", i, got)
		}
		if err := client.RemoveContainer(t.Context(), c.ID, engine.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	if got := mountedVolumes(t, n); len(got) > 0 {
		t.Errorf("with the last removed, mounted: %v", got)
	}
	if err := client.Volumes.Remove(t.Context(), "v"); err != nil {
		t.Error(err)
	}
	n.Clean()
}

// TestPasswordsOfVolumesAreNotTold: to nobody, not even when the mount fails.
func TestPasswordsOfVolumesAreNotTold(t *testing.T) {
	n := enginetest.New(t)
	sb := n.Pod(core.OwnerCRI, "pod")
	if _, err := user(t, n, sb, "c", core.VolumeMount{Name: "v", Target: "/data", Options: share()}); err != nil {
		t.Fatal(err)
	}
	n.Roots.Fail(func(call string) error {
		if call == "Mount" {
			return errors.New("no route")
		}
		return nil
	})
	other := share()
	other["device"] = "//127.0.0.1/other"
	_, failed := user(t, n, sb, "d", core.VolumeMount{Name: "w", Target: "/data", Options: other})
	n.Roots.Fail(nil)
	if failed == nil {
		t.Fatal("a volume that cannot be mounted is used")
	}
	_, differs := user(t, n, sb, "e", core.VolumeMount{Name: "v", Target: "/data", Options: other})
	if !errdefs.IsFailedPrecondition(differs) || !strings.Contains(differs.Error(), "other options") {
		t.Errorf("%v", differs)
	}
	all := n.Engine.All()
	containers, err := all.Containers(t.Context(), core.Filter{})
	if err != nil || len(containers) != 1 {
		t.Fatalf("%+v, %v", containers, err)
	}
	var events []core.Event
	if err := n.Options.Store.View(func(tx core.Tx) error {
		for e, err := range tx.Events(0) {
			if err != nil {
				return err
			}
			events = append(events, e)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal([]any{containers, containers[0].Config.Volumes[0].Options, events, n.Runtime.Spec(containers[0].ID), failed.Error(), differs.Error()})
	if err != nil || strings.Contains(string(shown), "hunter2") {
		t.Errorf("%s, %v", shown, err)
	}
	n.Clean()
}

// TestASubPathIsResolvedWhenItIsMounted: below the volume, and nothing is copied.
func TestASubPathIsResolvedWhenItIsMounted(t *testing.T) {
	n := enginetest.New(t)
	sb := n.Pod(core.OwnerCRI, "pod")
	c, err := user(t, n, sb, "c", core.VolumeMount{Name: "v", Target: "/data", SubPath: "a/b"})
	if err != nil {
		t.Fatal(err)
	}
	vol, err := n.Volumes.Get(t.Context(), core.OwnerCRI, "v")
	if err != nil || vol.Filled {
		t.Errorf("%+v, %v", vol, err)
	}
	if !slices.ContainsFunc(n.Runtime.Spec(c.ID).Mounts, func(m specs.Mount) bool {
		return m.Destination == "/data" && m.Source == vol.Path+"/a/b" && slices.Contains(m.Options, "x-longshore.below="+vol.Path)
	}) {
		t.Errorf("%+v", n.Runtime.Spec(c.ID).Mounts)
	}
	for _, use := range []core.VolumeMount{{Name: "v", SubPath: "../x"}, {Name: "v", SubPath: "/x"}, {Name: ".."}, {Name: "a/b"}, {Name: ""}} {
		use.Target = "/data"
		if _, err := user(t, n, sb, "d", use); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", use, err)
		}
	}
}

// TestUsesThatEndAtOnceLeaveNoMount: creates that fail and removals run at the same time, and the
// last of them unmounts.
func TestUsesThatEndAtOnceLeaveNoMount(t *testing.T) {
	n := enginetest.New(t)
	var pods []core.Sandbox
	for _, key := range []core.Key{"a", "b", "c", "d"} {
		pods = append(pods, n.Pod(core.OwnerCRI, key))
	}
	n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	for range 20 {
		var ends sync.WaitGroup
		for i, sb := range pods {
			ends.Go(func() {
				c, err := user(t, n, sb, string(sb.Key), core.VolumeMount{Name: "v", Target: "/data", Options: share()}, map[bool]core.VolumeMount{true: {Name: "v", Target: "/x"}, false: {Name: "w", Target: "/x", Options: map[string]string{"o": "wrong"}}}[i%2 == 0])
				if err != nil {
					return
				}
				if err := n.As(core.OwnerCRI).RemoveContainer(t.Context(), c.ID, engine.RemoveOptions{Force: true}); err != nil {
					t.Error(err)
				}
			})
		}
		ends.Wait()
		if got := mountedVolumes(t, n); len(got) > 0 {
			t.Fatalf("mounted: %v", got)
		}
	}
}

// TestCheckSeesVolumesThatAreNotMounted: a mount that is gone, and one that nobody uses.
func TestCheckSeesVolumesThatAreNotMounted(t *testing.T) {
	n := enginetest.New(t)
	sb := n.Pod(core.OwnerCRI, "pod")
	c, err := user(t, n, sb, "c", core.VolumeMount{Name: "v", Target: "/data", Options: share()})
	if err != nil {
		t.Fatal(err)
	}
	n.Clean()
	dir := filepath.Join(n.Options.State, "volumes/cri")
	if err := n.Roots.Unmount(t.Context(), filepath.Join(dir, "v")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "w"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := n.Roots.Mount(t.Context(), filepath.Join(dir, "w"), []core.Mount{{Type: "tmpfs"}}, false); err != nil {
		t.Fatal(err)
	}
	found, err := n.Engine.Check(t.Context())
	if err != nil || len(found) != 2 {
		t.Fatalf("%v, %v", found, err)
	}
	for i, want := range []string{"missing container " + string(c.ID) + ": its volume v is not mounted any more", "orphan mount of volume cri/w: no container uses it"} {
		if found[i].String() != want {
			t.Errorf("%q", found[i])
		}
	}
	if _, err := n.Engine.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := mountedVolumes(t, n); len(got) > 0 {
		t.Errorf("mounted: %v", got)
	}
}

// anonymous makes a container with a volume that is made for it, and with one that has a name.
func anonymous(t *testing.T, n *enginetest.Node, sb core.Sandbox, key string) error {
	t.Helper()
	_, err := user(t, n, sb, key, core.VolumeMount{Name: "anonymous-" + key, Target: "/data", Labels: map[string]string{core.AnonymousLabel: "true"}}, core.VolumeMount{Name: "named", Target: "/named"})
	return err
}

// names returns the names of the owner's volumes.
func names(t *testing.T, n *enginetest.Node) (list []string) {
	t.Helper()
	all, err := n.As(core.OwnerCRI).Volumes.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		list = append(list, v.Name)
	}
	return list
}

// TestAFailedCreateLeavesNoAnonymousVolume: the volumes that were made for the container go with it,
// those with a name stay. A create that succeeds keeps both.
func TestAFailedCreateLeavesNoAnonymousVolume(t *testing.T) {
	n := enginetest.New(t)
	sb := n.Pod(core.OwnerCRI, "pod")
	n.Runtime.Fail(func(call string) error {
		if call == "Create" {
			return errors.New("no memory")
		}
		return nil
	})
	if err := anonymous(t, n, sb, "fails"); err == nil {
		t.Fatal("the create did not fail")
	}
	n.Runtime.Fail(nil)
	if got := names(t, n); !slices.Equal(got, []string{"named"}) {
		t.Errorf("after a create that failed: %v", got)
	}
	if err := anonymous(t, n, sb, "works"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, n); !slices.Equal(got, []string{"anonymous-works", "named"}) {
		t.Errorf("after a create: %v", got)
	}
	n.Clean()
}

// TestAnInterruptedCreateLeavesNoAnonymousVolume: the agent dies after a stage, and its successor
// removes the volumes made for the container.
func TestAnInterruptedCreateLeavesNoAnonymousVolume(t *testing.T) {
	for _, stage := range []string{"create.volumes", "create.spec", "create.launch"} {
		t.Run(stage, func(t *testing.T) {
			n := enginetest.New(t)
			crash := n.Crashes()
			n.Stop()
			n.Start()
			sb := n.Pod(core.OwnerCRI, "pod")
			crash.At(stage)
			if err := anonymous(t, n, sb, "dies"); err == nil || !crash.Dead() {
				t.Fatalf("the agent did not die: %v", err)
			}
			n.Stop()
			n.Start()
			if got := names(t, n); !slices.Equal(got, []string{"named"}) {
				t.Errorf("left: %v", got)
			}
		})
	}
}

// TestUnusedVolumes are the anonymous ones that no container has.
func TestUnusedVolumes(t *testing.T) {
	n := enginetest.New(t)
	sb := n.Pod(core.OwnerCRI, "pod")
	c, err := user(t, n, sb, "c", core.VolumeMount{Name: "anonymous-c", Target: "/data", Labels: map[string]string{core.AnonymousLabel: "true"}}, core.VolumeMount{Name: "named", Target: "/named"})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := n.As(core.OwnerCRI).Volumes.Unused(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("with a container: %v, %v", list, err)
	}
	if err := n.As(core.OwnerCRI).RemoveContainer(t.Context(), c.ID, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if list, err := n.As(core.OwnerCRI).Volumes.Unused(t.Context()); err != nil || len(list) != 1 || list[0].Name != "anonymous-c" {
		t.Errorf("without: %v, %v", list, err)
	}
}
