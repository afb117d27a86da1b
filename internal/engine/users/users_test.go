package users

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"github.com/longshore/longshore/internal/sysctl"
)

// able is the fake runtime, with user namespaces.
type able struct{ *enginetest.Runtime }

func (a able) Features(ctx context.Context) (core.RuntimeFeatures, error) {
	f, err := a.Runtime.Features(ctx)
	f.UserNamespaces, f.IDMappedMounts = true, true
	return f, err
}

// table returns a table that cannot map paths below /bad.
func table(auto bool, first, ranges uint32) *Table {
	t := New(Options{Auto: auto, First: first, Ranges: ranges, Roots: "/roots", Make: func(context.Context, []specs.LinuxIDMapping, []specs.LinuxIDMapping, ...specs.LinuxNamespaceType) ([]*os.File, error) {
		return nil, errors.New("no user namespaces")
	}})
	t.try = func(p string, _ bool) error {
		if strings.HasPrefix(p, "/bad") {
			return fmt.Errorf("the owners at %s: %w", p, errdefs.ErrFailedPrecondition)
		}
		return nil
	}
	return t
}

func node(t *testing.T, tab *Table) *enginetest.Node {
	t.Helper()
	n := enginetest.Fakes(t)
	n.Options.Runtimes, n.Options.Users = []core.Runtime{able{n.Runtime}}, tab
	n.Start()
	return n
}

func sandbox(key string, change func(*core.SandboxConfig)) core.SandboxConfig {
	shared := core.Namespace{Mode: core.Shared}
	cfg := core.SandboxConfig{Key: core.Key(key), Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared}, Sysctls: sysctl.AnyUser()}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

func own(cfg *core.SandboxConfig) { cfg.Users.Own = true }

// TestRangesAreNotShared: sandboxes that are created together have ranges of their own, also after a restart; those of removed
// ones are free again.
func TestRangesAreNotShared(t *testing.T) {
	const first, ranges = 65536, 40
	n := node(t, table(true, first, ranges))
	used := map[uint32]core.ID{}
	var mu sync.Mutex // guards used
	take := func(key string, change func(*core.SandboxConfig)) {
		sb, err := n.As(core.OwnerCLI).CreateSandbox(t.Context(), sandbox(key, change))
		if err != nil {
			t.Error(err)
			return
		}
		c := sb.Config
		if want := fmt.Sprint(c.UIDs[0].HostID, " ", c.UIDs[0].HostID+core.UserIDs-1); c.Sysctls["net.ipv4.ping_group_range"] != want {
			t.Errorf("%s: %v, want %s", key, c.Sysctls, want)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(c.UIDs) != 1 || len(c.GIDs) != 1 || c.UIDs[0] != c.GIDs[0] || c.UIDs[0].Size != core.UserIDs || c.UIDs[0].ContainerID != 0 || (c.UIDs[0].HostID-first)%core.UserIDs != 0 {
			t.Errorf("%s: %v, %v", key, c.UIDs, c.GIDs)
			return
		}
		if other, ok := used[c.UIDs[0].HostID]; ok {
			t.Errorf("%s has the ids of %s", sb.ID, other)
		}
		used[c.UIDs[0].HostID] = sb.ID
	}
	// A caller's mapping, such as kubelet's, begins and ends within ranges of the pool.
	if _, err := n.As(core.OwnerCRI).CreateSandbox(t.Context(), sandbox("kubelets", func(c *core.SandboxConfig) {
		m := []specs.LinuxIDMapping{{HostID: first + 3*core.UserIDs + 5, Size: core.UserIDs}}
		c.UIDs, c.GIDs, c.Namespaces.User.Mode = m, m, core.Shared
	})); err != nil {
		t.Fatal(err)
	}
	used[first+3*core.UserIDs], used[first+4*core.UserIDs] = "kubelet's", "kubelet's"
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { take(fmt.Sprintf("own%d", i), own) })
		wg.Go(func() {
			if i < 10 {
				take(fmt.Sprintf("auto%d", i), nil)
			}
		})
	}
	wg.Wait()
	n.Restart()
	for i := range 8 {
		take(fmt.Sprintf("later%d", i), nil)
	}
	if len(used) != ranges || t.Failed() {
		t.Fatalf("%d of %d ranges are used", len(used), ranges)
	}
	cli := n.As(core.OwnerCLI)
	if _, err := cli.CreateSandbox(t.Context(), sandbox("more", own)); !errdefs.IsUnavailable(err) {
		t.Errorf("without a free range: %v", err)
	}
	const freed = first + 17*core.UserIDs
	if err := cli.RemoveSandbox(t.Context(), used[freed], engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	delete(used, freed)
	take("again", nil)
	// The ids that the node gave are refused to others.
	for name, m := range map[string]specs.LinuxIDMapping{"the end": {HostID: first - 5, Size: 6}, "the middle": {HostID: freed + 7, Size: 1}, "all": {HostID: 1, Size: 1 << 31}} {
		_, err := n.As(core.OwnerCRI).CreateSandbox(t.Context(), sandbox(name, func(c *core.SandboxConfig) {
			c.UIDs, c.GIDs, c.Namespaces.User.Mode = []specs.LinuxIDMapping{m}, []specs.LinuxIDMapping{{HostID: 5, Size: 1}}, core.Shared
		}))
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "engine.userns_first_id") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAPoolOfItsOwn: a sandbox's range comes from the pool of its request, and no range overlaps with one of the other pool.
func TestAPoolOfItsOwn(t *testing.T) {
	n := node(t, table(false, 65536, 2))
	pool := func(c *core.SandboxConfig) { own(c); c.Users.First, c.Users.Ranges = 100000, 2 }
	for i, change := range []func(*core.SandboxConfig){own, pool} {
		sb, err := n.As(core.OwnerCLI).CreateSandbox(t.Context(), sandbox(fmt.Sprint(i), change))
		if err != nil {
			t.Fatal(err)
		}
		if want := []uint32{65536, 100000 + core.UserIDs}[i]; sb.Config.UIDs[0].HostID != want {
			t.Errorf("%d has %v, want %d", i, sb.Config.UIDs, want)
		}
	}
	if _, err := n.As(core.OwnerCLI).CreateSandbox(t.Context(), sandbox("third", pool)); !errdefs.IsUnavailable(err) {
		t.Errorf("its ranges overlap those of the first two: %v", err)
	}
}

// TestTheNodeChooses has a row for each reason to give a sandbox the node's ids.
func TestTheNodeChooses(t *testing.T) {
	could := core.RuntimeFeatures{UserNamespaces: true, IDMappedMounts: true}
	mode := func(m core.NamespaceMode) core.Namespace { return core.Namespace{Mode: m} }
	open, closed := os.FileMode(0o666), os.FileMode(0o600)
	for name, c := range map[string]struct {
		change func(*core.SandboxConfig)
		want   string
	}{
		"an ordinary one":       {nil, ""},
		"caps of the container": {func(c *core.SandboxConfig) { c.Users.Caps = []string{"CAP_NET_ADMIN", "CAP_MKNOD", "CAP_SYS_PTRACE"} }, ""},
		"its own cgroups":       {func(c *core.SandboxConfig) { c.Namespaces.Cgroup = mode(core.Host) }, ""},
		"a path":                {func(c *core.SandboxConfig) { c.Users.Paths = []string{"/good"} }, ""},
		"an open device":        {func(c *core.SandboxConfig) { c.Users.Devices = []specs.LinuxDevice{{Path: "/dev/a", FileMode: &open}} }, ""},
		"a device": {func(c *core.SandboxConfig) {
			c.Users.Devices = []specs.LinuxDevice{{Path: "/dev/a", FileMode: &closed}}
		}, "/dev/a"},
		"it says so":            {func(c *core.SandboxConfig) { c.Users.Host = "it says so" }, "it says so"},
		"the host's pids":       {func(c *core.SandboxConfig) { c.Namespaces.PID = mode(core.Host) }, "pid"},
		"the host's network":    {func(c *core.SandboxConfig) { c.Namespaces.Net = mode(core.Host) }, "network"},
		"the host's IPC":        {func(c *core.SandboxConfig) { c.Namespaces.IPC = mode(core.Host) }, "IPC"},
		"another's network":     {func(c *core.SandboxConfig) { c.Namespaces.Net = mode(core.Joined) }, "of another container"},
		"a given network":       {func(c *core.SandboxConfig) { c.Namespaces.Net = mode(core.Adopted) }, "made outside"},
		"admin":                 {func(c *core.SandboxConfig) { c.Users.Caps = []string{"CAP_SYS_ADMIN"} }, "CAP_SYS_ADMIN"},
		"a path without owners": {func(c *core.SandboxConfig) { c.Users.Paths = []string{"/good", "/bad/a"} }, "/bad/a"},
	} {
		cfg := sandbox("k", c.change)
		if err := table(true, 65536, 1).Resolve(&cfg, "native", could); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		u := cfg.Users
		if u.Chosen != (c.want == "") || !strings.Contains(u.Host, c.want) || u.Chosen != (u.Host == "") || u.Chosen != (cfg.Namespaces.User.Mode == core.Shared) {
			t.Errorf("%s: %+v, want %q", name, u, c.want)
		}
	}
	cfg := sandbox("k", nil)
	if err := table(true, 65536, 1).Resolve(&cfg, "odd", core.RuntimeFeatures{UserNamespaces: true}); err != nil || !strings.Contains(cfg.Users.Host, "runtime odd has no user namespaces") {
		t.Errorf("a runtime without id-mapped mounts: %v, %+v", err, cfg.Users)
	}
	if err := table(false, 65536, 1).Resolve(&cfg, "native", could); err != nil || cfg.Users.Chosen || cfg.Users.Host != "" {
		t.Errorf("without auto: %v, %+v", err, cfg.Users)
	}
	cfg.Users.Own = true
	if err := table(false, 65536, 1).Resolve(&cfg, "odd", core.RuntimeFeatures{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a runtime without user namespaces is asked for one: %v", err)
	}
	bad := table(true, 65536, 1)
	bad.o.Roots = "/bad"
	cfg = sandbox("k", nil)
	if err := bad.Resolve(&cfg, "native", could); err != nil || !strings.Contains(cfg.Users.Host, "the files of images") {
		t.Errorf("roots without owners: %v, %+v", err, cfg.Users)
	}
	if auto, err := bad.Auto(); !auto || err == nil {
		t.Errorf("%v, %v", auto, err)
	}
}

// TestAContainerIsExempt: a container that needs the node's ids has them in a sandbox with others.
func TestAContainerIsExempt(t *testing.T) {
	n := node(t, table(true, 65536, 5))
	img := n.AddImage("x", ocispec.ImageConfig{}, nil)
	sb, err := n.As(core.OwnerCRI).CreateSandbox(t.Context(), sandbox("pod", nil))
	if err != nil {
		t.Fatal(err)
	}
	for key, needs := range map[string]core.UserNeeds{"": {}, "CAP_SYS_TIME": {Caps: []string{"CAP_SYS_TIME"}}, "privileged": {Host: "it is privileged"}} {
		var has *specs.Spec
		c, err := n.As(core.OwnerCRI).CreateContainer(t.Context(), core.ContainerConfig{
			Key: core.Key("c" + key), Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Users: needs, Spec: func(ctx context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
				s, data, err := enginetest.Args("sleep")(ctx, r)
				has = s
				return s, data, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if mapped := len(has.Linux.UIDMappings) > 0; mapped != (key == "") || !strings.Contains(c.Config.Users.Host, key) || (c.Config.Users.Host == "") != mapped {
			t.Errorf("%q: %+v, %v", key, c.Config.Users, has.Linux.UIDMappings)
		}
		if own := sb.Of(&c.Config); (len(own.Config.UIDs) > 0) != (key == "") {
			t.Errorf("%q: %v", key, own.Config.UIDs)
		}
	}
}

// TestMountsAreMapped: binds of the host map their owners, unless they do already.
func TestMountsAreMapped(t *testing.T) {
	mapping := core.UserRange(65536)
	spec := &specs.Spec{Mounts: []specs.Mount{
		{Type: "bind", Source: "/a", Options: []string{"rbind", "ro"}},
		{Type: "bind", Source: "/b", Options: []string{"bind"}},
		{Type: "tmpfs", Source: "tmpfs"},
		{Type: "bind", Source: "/c", Options: []string{"rbind"}, UIDMappings: mapping, GIDMappings: mapping},
		{Type: "bind", Source: "/ours/x", Options: []string{"bind"}},
		{Source: "/d", Options: []string{"rbind", "idmap"}},
	}, Linux: &specs.Linux{UIDMappings: mapping, GIDMappings: mapping}}
	tab := table(true, 65536, 1)
	if err := tab.Map(spec, true, func(s string) bool { return strings.HasPrefix(s, "/ours/") }); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range spec.Mounts {
		got = append(got, fmt.Sprint(strings.Join(m.Options, ","), len(m.UIDMappings), len(m.GIDMappings)))
	}
	if s := strings.Join(got, " "); s != "rbind,ro,ridmap1 1 bind1 1 0 0 rbind1 1 bind0 0 rbind,idmap0 0" {
		t.Errorf("%q", s)
	}
	spec.Mounts = []specs.Mount{{Type: "bind", Destination: "/here", Source: "/bad", Options: []string{"bind"}}}
	if err := tab.Map(spec, false, func(string) bool { return false }); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "/here") {
		t.Errorf("%v", err)
	}
}

func TestCheckPool(t *testing.T) {
	for _, c := range []struct {
		first, ranges uint32
		ok            bool
	}{{DefaultFirst, DefaultRanges, true}, {65536, 1, true}, {65535, 1, false}, {65536, 0, false}, {1<<32 - 1 - 65536, 1, true}, {1<<32 - 65536, 1, false}, {65536, 65535, false}} {
		if err := CheckPool(c.first, c.ranges); (err == nil) != c.ok || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestRangesInTurn: a range that a sandbox has left is not the next sandbox's, and only the lowest ones are used.
func TestRangesInTurn(t *testing.T) {
	n := node(t, table(false, 65536, 64))
	var got []uint32
	for i := range 6 {
		sb, err := n.As(core.OwnerCLI).CreateSandbox(t.Context(), sandbox(fmt.Sprint(i), own))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, sb.Config.UIDs[0].HostID/core.UserIDs)
		if i == 0 {
			continue // it keeps the first range
		}
		if err := n.As(core.OwnerCLI).RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []uint32{1, 2, 3, 4, 5, 2}; !slices.Equal(got, want) {
		t.Errorf("ranges %v, want %v", got, want)
	}
}
