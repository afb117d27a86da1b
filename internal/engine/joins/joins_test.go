package joins_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/engine/joins"
	"github.com/longshore/longshore/internal/engine/scope"
)

// rig is a node with fakes, and containers in sandboxes of their own.
type rig struct {
	*enginetest.Node
	t   *testing.T
	img core.Image
}

func newRig(t *testing.T) *rig {
	t.Helper()
	n := enginetest.Fakes(t)
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	return &rig{n, t, n.AddImage("busybox", ocispec.ImageConfig{}, nil)}
}

func (r *rig) cli() *engine.Client { return r.As(core.OwnerCLI) }

func (r *rig) create(name string, cfg core.SandboxConfig) (core.Sandbox, core.Container, error) {
	cfg.Key = core.Key(name)
	return r.cli().CreatePair(r.t.Context(), engine.Pair{Sandbox: cfg, Container: func(core.ID) (core.ContainerConfig, error) {
		return core.ContainerConfig{Key: core.Key(name), Root: core.Root{Image: r.img.ID}, Spec: enginetest.Args("sleep")}, nil
	}})
}

func (r *rig) run(name string, ns core.Namespaces) (core.Sandbox, core.Container) {
	r.t.Helper()
	sb, c, err := r.create(name, core.SandboxConfig{Namespaces: ns, Hostname: name})
	if err == nil {
		err = r.cli().StartContainer(r.t.Context(), c.ID)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return sb, c
}

func (r *rig) sandbox(id core.ID) core.Sandbox {
	r.t.Helper()
	sb, err := r.cli().Sandbox(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return sb
}

// ends ends a container's program, and then stops its sandbox as far as nobody uses it.
func (r *rig) ends(c core.Container) {
	r.t.Helper()
	if err := r.cli().StopContainer(r.t.Context(), c.ID, engine.StopOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.release(c)
}

func (r *rig) release(c core.Container) {
	r.t.Helper()
	if err := r.cli().StopSandbox(r.t.Context(), c.Sandbox, engine.StopOptions{IfEnded: true}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) starts(c core.Container) error {
	err := r.cli().RenewContainer(r.t.Context(), c.ID)
	if err == nil {
		err = r.cli().StartContainer(r.t.Context(), c.ID)
	}
	return err
}

var (
	shared = core.Namespace{Mode: core.Shared}
	all    = core.Namespaces{Net: shared, UTS: shared, IPC: shared}
)

func join(c core.Container) core.Namespace {
	return core.Namespace{Mode: core.Joined, Container: c.ID}
}

func TestAHolderKeepsItsNetworkForOthers(t *testing.T) {
	r := newRig(t)
	holder, h := r.run("holder", all)
	sb, c := r.run("joins", core.Namespaces{Net: join(h), UTS: shared})
	if got, want := sb.Network.Mode, "container:"+string(h.ID); got != want || sb.Config.Hostname != "holder" {
		t.Errorf("network %q, host name %q; want %q, holder", got, sb.Config.Hostname, want)
	}
	r.ends(h)
	if now := r.sandbox(holder.ID); now.State != core.SandboxReady {
		t.Errorf("the holder's sandbox is %s while its network is in use", now.State)
	}
	if err := r.starts(h); err != nil {
		t.Fatal(err)
	}
	if now := r.sandbox(holder.ID); now.Config.Namespaces.Net != holder.Config.Namespaces.Net {
		t.Errorf("the holder was started again with another network: %+v", now.Config.Namespaces.Net)
	}
	r.ends(h)
	r.ends(c)
	r.release(h)
	for _, sb := range []core.Sandbox{r.sandbox(holder.ID), r.sandbox(sb.ID)} {
		if sb.State != core.SandboxStopped {
			t.Errorf("sandbox %s is %s", sb.Key, sb.State)
		}
	}
	if err := r.starts(c); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "container holder is exited; start it first") {
		t.Errorf("a start without the holder: %v", err)
	}
	if err := r.starts(h); err != nil {
		t.Fatal(err)
	}
	if err := r.starts(c); err != nil {
		t.Error(err)
	}
	r.Clean()
}

// TestAHolderGivesItsPortsBack: while others use the network of a container that has ended, another container gets its host ports.
func TestAHolderGivesItsPortsBack(t *testing.T) {
	r := newRig(t)
	cfg := core.SandboxConfig{Namespaces: all, Network: core.NetworkConfig{Ports: []core.Port{{Proto: "tcp", Host: 80, Container: 80}}}}
	run := func(name string, cfg core.SandboxConfig) (core.Sandbox, core.Container) {
		t.Helper()
		sb, c, err := r.create(name, cfg)
		if err == nil {
			err = r.cli().StartContainer(t.Context(), c.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return sb, c
	}
	holder, h := run("holder", cfg)
	_, c := r.run("joins", core.Namespaces{Net: join(h), UTS: shared})
	if _, _, err := r.create("other", cfg); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a port that is in use: %v", err)
	}
	r.ends(h)
	if now := r.sandbox(holder.ID); len(now.Network.Ports) > 0 || now.State != core.SandboxReady || len(now.Config.Network.Ports) != 1 {
		t.Errorf("the holder's sandbox has %+v", now)
	}
	_, other := run("other", cfg)
	if err := r.starts(h); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a start while another has the port: %v", err)
	}
	if now := r.sandbox(holder.ID); len(now.Network.Ports) > 0 {
		t.Errorf("after a start that failed the holder's sandbox has %+v", now.Network.Ports)
	}
	r.ends(other)
	if err := r.starts(h); err != nil {
		t.Fatal(err)
	}
	if now := r.sandbox(holder.ID); len(now.Network.Ports) != 1 {
		t.Errorf("the holder was started again with the ports %+v", now.Network.Ports)
	}
	r.ends(c)
	r.ends(h)
	r.Clean()
}

func TestARemovedHolder(t *testing.T) {
	r := newRig(t)
	_, h := r.run("holder", all)
	_, c := r.run("joins", core.Namespaces{Net: join(h)})
	if err := r.cli().RemoveSandbox(t.Context(), h.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	r.Clean()
	r.ends(c)
	if err := r.starts(c); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("a start without the holder: %v", err)
	}
	r.Clean()
}

func TestAJoinLeadsToTheHolderOfTheNamespace(t *testing.T) {
	r := newRig(t)
	_, h := r.run("holder", all)
	_, middle := r.run("middle", core.Namespaces{Net: join(h), IPC: join(h), PID: join(h)})
	sb, _ := r.run("last", core.Namespaces{Net: join(middle), IPC: join(middle), PID: join(middle)})
	for kind, n := range sb.Config.Namespaces.Joinable() {
		if n.Container != h.ID || n.Holder != h.Sandbox || n.Path == "" {
			t.Errorf("%s: %+v, want the holder's, %s", kind, n, h.ID)
		}
	}
	r.ends(middle)
	host, hc := r.run("host", core.Namespaces{Net: core.Namespace{Mode: core.Host}, PID: core.Namespace{Mode: core.Host}, IPC: core.Namespace{Mode: core.Host}})
	sb, _ = r.run("on the host", core.Namespaces{Net: join(hc), IPC: join(hc), PID: join(hc)})
	if sb.Config.Namespaces.Net != host.Config.Namespaces.Net || sb.Config.Namespaces.PID != host.Config.Namespaces.PID || sb.Network.Mode != "host" {
		t.Errorf("%+v, network %s", sb.Config.Namespaces, sb.Network.Mode)
	}
	r.Clean()
}

func TestWhatCannotBeJoined(t *testing.T) {
	r := newRig(t)
	_, private := r.run("private", core.Namespaces{Net: shared})
	_, h := r.run("holder", all)
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	_, ended := r.run("ended", all)
	r.ends(ended)
	for name, c := range map[string]struct {
		cfg  core.SandboxConfig
		is   func(error) bool
		text string
	}{
		"private ipc":    {core.SandboxConfig{Namespaces: core.Namespaces{IPC: join(private)}}, errdefs.IsInvalidArgument, "--ipc shareable"},
		"user namespace": {core.SandboxConfig{Namespaces: core.Namespaces{Net: join(h), User: shared}, UIDs: ids, GIDs: ids}, errdefs.IsInvalidArgument, "user namespace"},
		"no container":   {core.SandboxConfig{Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Joined, Container: "x"}}}, errdefs.IsNotFound, ""},
		"an ended one":   {core.SandboxConfig{Namespaces: core.Namespaces{Net: join(ended)}}, errdefs.IsUnavailable, "start it first"},
	} {
		if _, _, err := r.create(name, c.cfg); err == nil || !c.is(err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.As(core.OwnerCRI).CreateSandbox(t.Context(), core.SandboxConfig{Key: "k", Namespaces: core.Namespaces{Net: join(h)}}); !errdefs.IsNotFound(err) {
		t.Errorf("of another owner: %v", err)
	}
	r.Clean()
}

// TestAPidOfAnotherProcess ends the holder while its pid namespace is pinned, by its pid.
func TestAPidOfAnotherProcess(t *testing.T) {
	r := newRig(t)
	_, h := r.run("holder", all)
	r.Pinner.Fail(func(string) error { r.Supervisor.Exit(core.Ref{Container: h.ID}, 0); return nil })
	if _, _, err := r.create("joins", core.SandboxConfig{Namespaces: core.Namespaces{PID: join(h)}}); !errdefs.IsUnavailable(err) {
		t.Errorf("created with %v", err)
	}
	r.Pinner.Fail(nil)
	r.Clean()
}

func TestShownHasTheAddressesOfLinks(t *testing.T) {
	r := newRig(t)
	_, target := r.run("target", all)
	_, gone := r.run("gone", all)
	links := []core.Link{{Container: target.ID, Names: []string{"db target"}}, {Container: gone.ID, Names: []string{"old"}}}
	sb, c, err := r.create("links", core.SandboxConfig{Namespaces: all, Network: core.NetworkConfig{Links: links, Hosts: map[string][]string{"192.0.2.1": {"own"}}}})
	if err != nil {
		t.Fatal(err)
	}
	table := joins.Table{Records: scope.Records{Store: r.Options.Store}}
	shown := func() map[string][]string {
		t.Helper()
		shown, err := table.Shown(r.sandbox(sb.ID))
		if err != nil {
			t.Fatal(err)
		}
		return shown.Config.Network.Hosts
	}
	address := r.sandbox(target.Sandbox).Network.Interfaces[0].Addrs[0].Addr().String()
	if got := shown(); len(got) != 3 || !slices.Equal(got[address], []string{"db target"}) || got["192.0.2.1"][0] != "own" {
		t.Errorf("both run: %q, the address is %s", got, address)
	}
	r.ends(target)
	if err := r.cli().RemoveSandbox(t.Context(), gone.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if got := shown(); len(got) != 1 {
		t.Errorf("none runs: %q", got)
	}
	if stored := r.sandbox(sb.ID).Config; !slices.Equal(stored.Needs(), []core.ID{target.ID, gone.ID}) || len(stored.Network.Hosts) != 1 {
		t.Errorf("stored: %+v", stored.Network)
	}
	if err := r.cli().StopContainer(t.Context(), c.ID, engine.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Clean()
}
