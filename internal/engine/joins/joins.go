// Package joins gives a sandbox the namespaces of containers in other sandboxes: core.Joined.
//
// A sandbox pins a joined namespace in its own directory, each time it becomes ready. While it is
// ready, the end of the holder's program does not release the holder's network and IPC namespace:
// when the holder is started again, both still share them. A pid namespace ends with the holder's
// program. Start at Table.Resolve.
package joins

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
)

// Table is the core.Joiner of an engine. All fields are required.
type Table struct {
	Records scope.Records
	Lock    scope.Lock
	Cgroups core.Cgroups
	Pinner  core.Pinner
}

var _ core.Joiner = Table{}

// Resolve implements core.Joiner.
func (t Table) Resolve(owner core.Owner, cfg *core.SandboxConfig) error {
	for kind, n := range cfg.Namespaces.Joined() {
		c, err := t.Records.Container(n.Container)
		if err == nil && c.Owner != owner {
			err = fmt.Errorf("container %s: %w", n.Container, errdefs.ErrNotFound)
		}
		var h core.Sandbox
		if err == nil {
			h, err = t.Records.Sandbox(c.Sandbox)
		}
		if err == nil {
			err = resolve(kind, n, cfg, &c, &h)
		}
		if err != nil {
			return fmt.Errorf("join the %s namespace: %w", kind, err)
		}
	}
	return nil
}

func resolve(kind specs.LinuxNamespaceType, n *core.Namespace, cfg *core.SandboxConfig, c *core.Container, h *core.Sandbox) error {
	has := *h.Config.Namespaces.Joinable()[kind]
	taken := slices.ContainsFunc(c.Config.Join, func(j core.Join) bool { return j.Namespace == kind })
	if kind == specs.NetworkNamespace {
		cfg.Hostname, cfg.Domainname = h.Config.Hostname, h.Config.Domainname
	}
	switch {
	case len(cfg.UIDs) > 0 || cfg.Namespaces.User.Mode == core.Shared:
		return fmt.Errorf("a container with a user namespace of its own cannot join another container: %w", errdefs.ErrInvalidArgument)
	case has.Mode == core.Host:
		*n = core.Namespace{Mode: core.Host}
		return nil
	case taken || slices.Contains(c.Config.Own, kind):
		return fmt.Errorf("that of container %s is not its sandbox's: %w", c.Name(), errdefs.ErrInvalidArgument)
	case has.Mode == core.Joined:
		n.Container, n.Holder = has.Container, has.Holder
		return nil
	case kind == specs.IPCNamespace && has.Mode == core.PerContainer:
		return fmt.Errorf("that of container %s is private; create that container with --ipc shareable: %w", c.Name(), errdefs.ErrInvalidArgument)
	case has.Mode == core.Shared && kind != specs.PIDNamespace, has.Mode == core.PerContainer && kind == specs.PIDNamespace:
		n.Holder = h.ID
		return nil
	}
	return fmt.Errorf("that of container %s cannot be shared: %w", c.Name(), errdefs.ErrInvalidArgument)
}

// Stop implements core.Joiner.
func (t Table) Stop(sb core.Sandbox) (core.Sandbox, error) {
	if sb.State != core.SandboxReady || len(sb.Config.Namespaces.Joined()) == 0 {
		return sb, nil
	}
	return t.Records.EditSandbox(sb.ID, func(sb *core.Sandbox, n *scope.Change) error {
		sb.State, _ = core.NextSandbox(sb.State, core.VerbStop)
		n.Add(core.Event{Kind: core.EventSandboxStopped})
		return nil
	})
}

// Pin implements core.Joiner.
func (t Table) Pin(ctx context.Context, sb *core.Sandbox, req core.PinRequest) error {
	list := sb.Config.Namespaces.Joined()
	req.Join = map[specs.LinuxNamespaceType]string{}
	pid := 0
	for kind, n := range list {
		if req.Rest {
			req.Join[kind] = ""
			continue
		}
		path, c, err := t.source(ctx, sb, kind, n)
		if err != nil {
			return fmt.Errorf("join the %s namespace: %w", kind, err)
		}
		if req.Join[kind] = path; kind == specs.PIDNamespace {
			pid = c.Main.Pid
		}
	}
	paths, err := t.Pinner.Pin(ctx, req)
	if err != nil {
		return err
	}
	for kind, n := range owned.Pinned(&sb.Config.Namespaces) {
		n.Path = paths[kind]
	}
	if req.Rest {
		return nil
	}
	return t.verify(ctx, &sb.Config.Namespaces.PID, pid)
}

// source returns the file of a namespace, and its holder. It waits for the verb on the holder's sandbox that
// is under way.
func (t Table) source(ctx context.Context, sb *core.Sandbox, kind specs.LinuxNamespaceType, n *core.Namespace) (path string, c core.Container, err error) {
	unlock, err := t.Lock(ctx, n.Holder)
	if err != nil {
		return "", c, err
	}
	defer unlock()
	if c, err = t.holder(n); err != nil {
		return "", c, err
	}
	if live := c.State.Live(); !live && (sb.State != core.SandboxCreating || c.State != core.ContainerCreated) {
		return "", c, fmt.Errorf("container %s is %s; start it first: %w", c.Name(), c.State, errdefs.ErrUnavailable)
	}
	if kind == specs.PIDNamespace {
		return fmt.Sprintf("/proc/%d/ns/pid", c.Main.Pid), c, nil
	}
	h, err := t.Records.Sandbox(n.Holder)
	if err != nil {
		return "", c, err
	}
	return h.Config.Namespaces.Joinable()[kind].Path, c, nil
}

func (t Table) holder(n *core.Namespace) (core.Container, error) {
	c, err := t.Records.Container(n.Container)
	if errdefs.IsNotFound(err) {
		return c, fmt.Errorf("container %s was removed: %w", n.Container, errdefs.ErrFailedPrecondition)
	}
	return c, err
}

// verify checks that the pid namespace that was pinned by a pid is the holder's: the holder may have ended
// meanwhile, and its pid may be that of another process of the node.
func (t Table) verify(ctx context.Context, n *core.Namespace, pid int) error {
	if n.Mode != core.Joined {
		return nil
	}
	c, err := t.holder(n)
	if err != nil {
		return err
	}
	pids, err := t.Cgroups.Pids(ctx, c.Cgroup)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if pid == 0 || c.Main.Pid != pid || !slices.Contains(pids, pid) {
		return fmt.Errorf("join the pid namespace: container %s has just ended: %w", c.Name(), errdefs.ErrUnavailable)
	}
	return nil
}

// Held implements core.Joiner.
func (t Table) Held(holder core.ID) (held bool, err error) {
	err = t.Records.Store.View(func(tx core.Tx) error {
		for sb := range tx.Sandboxes().Stored("") {
			ns := &sb.Config.Namespaces
			uses := ns.Net.Holder == holder || ns.IPC.Holder == holder
			held = held || uses && (sb.State != core.SandboxStopped || sb.Renewing)
		}
		return nil
	})
	return held, err
}

// Shown implements core.Joiner.
func (t Table) Shown(sb core.Sandbox) (core.Sandbox, error) {
	if sb.Config.Namespaces.Net.Mode == core.Joined {
		h, err := t.Records.Sandbox(sb.Config.Namespaces.Net.Holder)
		if err != nil {
			return sb, err
		}
		sb.Network, sb.Config.Network, sb.Config.Namespaces.Net = h.Network, h.Config.Network, h.Config.Namespaces.Net
	}
	if len(sb.Config.Network.Links) == 0 {
		return sb, nil
	}
	hosts := maps.Clone(sb.Config.Network.Hosts)
	if hosts == nil {
		hosts = map[string][]string{}
	}
	for _, l := range sb.Config.Network.Links {
		c, err := t.Records.Container(l.Container)
		if errdefs.IsNotFound(err) {
			continue
		}
		var other core.Sandbox
		if err == nil {
			other, err = t.Records.Sandbox(c.Sandbox)
		}
		if err != nil {
			return sb, err
		}
		if addr := common(&sb.Network, &other); addr.IsValid() {
			hosts[addr.String()] = slices.Concat(hosts[addr.String()], []string{strings.Join(l.Names, " ")})
		}
	}
	sb.Config.Network.Hosts = hosts
	return sb, nil
}

// common returns the address of another sandbox on the first network that both are on.
func common(own *core.NetworkStatus, other *core.Sandbox) (none netip.Addr) {
	if other.State != core.SandboxReady {
		return none
	}
	for _, a := range own.Interfaces {
		i := other.Network.On(a.Network)
		if i >= 0 && len(other.Network.Interfaces[i].Addrs) > 0 {
			return other.Network.Interfaces[i].Addrs[0].Addr()
		}
	}
	return none
}
