package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/cgroup/systemd"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant/compiled"
	"github.com/longshore/longshore/internal/grant/document"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/runtime/granted"
	"github.com/longshore/longshore/internal/runtime/native"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/oci"
)

// runtimes are the configured runtimes and their state on this node.
type runtimes struct {
	usable []core.Runtime
	chosen string // name of the default one
	why    string // why it was chosen
	found  []foundRuntime
}

// foundRuntime is one configured runtime.
type foundRuntime struct {
	name     string
	features core.RuntimeFeatures
	problem  string // why it cannot be used; "" when it can
	runtime  core.Runtime
}

// broken returns the damage of the runtime's shared files.
func (r *foundRuntime) broken() error {
	if c, ok := r.runtime.(interface{ Check() error }); ok {
		return c.Check()
	}
	return nil
}

// bySpeed returns the order of runtimes for "auto", fastest first according to make bench.
func bySpeed() []string { return []string{nativeName, "crun", "runc"} }

// nativeName is the runtime that needs no program.
const nativeName = "native"

// addGrants adds the runtime of programs that hold only their descriptors, where the native one
// works. It is a native one of its own, with records of its own.
func (rs *runtimes) addGrants(ctx context.Context, n *node) error {
	i := slices.IndexFunc(rs.usable, func(rt core.Runtime) bool { return rt.Name() == nativeName })
	if i < 0 {
		return nil
	}
	inner, features, err := n.nativeNamed(ctx, core.GrantHandler)
	if err != nil {
		return fmt.Errorf("runtime %s: %w", core.GrantHandler, err)
	}
	policy, err := document.OpenPolicy(n.cfg.Engine.GrantsPolicy)
	if err != nil {
		return fmt.Errorf("engine.grants_policy: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	rt, err := granted.New(granted.Options{Inner: inner, Dir: filepath.Join(n.cfg.Agent.State, "grants"), Cgroups: n.cgroups, Policy: policy, Board: n.board, Logger: n.log, Modules: n.modules})
	if err != nil {
		return err
	}
	rs.usable = append(rs.usable, rt)
	rs.found = append(rs.found, foundRuntime{name: core.GrantHandler, features: features, runtime: rt})
	return nil
}

// modules keeps compiled WebAssembly modules.
type modules interface {
	image.Modules
	granted.Modules
	Status() compiled.Status
}

func modulesFinding(m modules) control.Finding {
	if m == nil {
		return warn("wasm", "see the agent's log for the cause", "compiled WebAssembly modules cannot be kept: each start compiles its module")
	}
	s := m.Status()
	if s.Confined == "" {
		s.Confined = fmt.Sprintf("landlock abi %d (none has run yet)", confine.LandlockABI())
	}
	return ok("wasm", "%d compiled modules of %d bytes, %d being compiled, %d waiting, %d starts that did not wait; the compiler is confined by %s",
		s.Entries, s.Bytes, s.Compiling, s.Waiting, s.Alone, s.Confined)
}

// openModules opens the cache of compiled WebAssembly modules. Without one, each start of a module compiles it.
func openModules(root string, log *slog.Logger) modules {
	program, err := granted.WorkerPath()
	if err == nil {
		var c *compiled.Cache
		if c, err = compiled.New(compiled.Options{Dir: filepath.Join(root, "wasm"), Program: program, Logger: log}); err == nil {
			return c
		}
	}
	log.Warn("could not open the cache of compiled WebAssembly modules; each start will compile its module", "error", err)
	return nil
}

// findRuntimes probes every configured runtime. One that cannot be used is an error only if it is
// the configured default.
func (n *node) findRuntimes(ctx context.Context) (runtimes, error) {
	var rs runtimes
	names := bySpeed()
	for name := range n.cfg.Runtimes {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names[len(bySpeed()):])
	for _, name := range names {
		section, configured := n.cfg.Runtimes[name]
		if !configured && name != nativeName {
			continue
		}
		f := foundRuntime{name: name}
		rt, features, err := n.probe(ctx, name, section)
		if err != nil {
			f.problem = err.Error()
		} else {
			f.features, f.runtime = features, rt
			rs.usable = append(rs.usable, rt)
		}
		rs.found = append(rs.found, f)
	}
	if err := n.choose(&rs); err != nil {
		return rs, err
	}
	return rs, rs.addGrants(ctx, n)
}

func (n *node) choose(rs *runtimes) error {
	want := n.cfg.Engine.Runtime
	if want == config.RuntimeAuto {
		if len(rs.usable) == 0 {
			return fmt.Errorf("agent: no runtime can be used; install crun or fix the cause: %s: %w", problems(rs.found), errdefs.ErrFailedPrecondition)
		}
		rs.chosen, rs.why = rs.usable[0].Name(), "the fastest that works here"
		return nil
	}
	for _, rt := range rs.usable {
		if rt.Name() == want {
			rs.chosen, rs.why = want, "set by engine.runtime"
			return nil
		}
	}
	return fmt.Errorf("agent: engine.runtime is %s, which cannot be used: %s: %w", want, problems(rs.found), errdefs.ErrFailedPrecondition)
}

func problems(found []foundRuntime) string {
	s := ""
	for _, f := range found {
		if f.problem != "" {
			s += f.name + ": " + f.problem + "; "
		}
	}
	return s
}

func (n *node) probe(ctx context.Context, name string, section config.Runtime) (core.Runtime, core.RuntimeFeatures, error) {
	var features core.RuntimeFeatures
	if name == nativeName {
		return n.nativeNamed(ctx, nativeName)
	}
	path := section.Path
	if path == "" {
		var err error
		if path, err = exec.LookPath(name); err != nil {
			return nil, features, fmt.Errorf("not installed: %w", err)
		}
		if path, err = filepath.Abs(path); err != nil {
			return nil, features, err
		}
	}
	rt, err := oci.New(oci.Options{
		Name: name, Path: path, Root: filepath.Join(n.cfg.Agent.State, "runtime", name), SocketDir: filepath.Join(n.cfg.Agent.State, "tty"),
		Launcher: n.keeper, Supervisor: n.keeper, Cgroups: n.cgroups, Logger: n.log,
	})
	if err != nil {
		return nil, features, err
	}
	features, err = rt.Features(ctx)
	return rt, features, err
}

func (n *node) nativeNamed(ctx context.Context, name string) (core.Runtime, core.RuntimeFeatures, error) {
	host, err := compile.ReadHost()
	if err != nil {
		return nil, core.RuntimeFeatures{}, err
	}
	rt, err := native.New(native.Options{
		Name: name, Dir: filepath.Join(n.cfg.Agent.State, "runtime", name), Launcher: n.keeper, Supervisor: n.keeper, Cgroups: n.cgroups, ProcessDir: n.cgroups.ProcessDir, Host: host,
		Spare: n.spare.Take, Logger: n.log, Version: n.version,
	})
	if err != nil {
		return nil, core.RuntimeFeatures{}, err
	}
	before := n.release
	n.release = func() error { return errors.Join(before(), rt.Release()) }
	features, err := rt.Features(ctx)
	return rt, features, err
}

// systemdCgroups reports whether systemd makes the cgroups.
func (n *node) systemdCgroups() bool { return n.cfg.Engine.CgroupDriver == "systemd" }

// openCgroups opens the node's cgroups, and the connection to systemd if systemd makes them.
func (n *node) openCgroups(ctx context.Context) (cgroup.Delegating, error) {
	o := cgroup.Options{Root: n.cfg.Engine.CgroupRoot, Logger: n.log}
	if n.systemdCgroups() {
		s, err := systemd.Dial(ctx)
		if err != nil {
			return cgroup.Delegating{}, fmt.Errorf("agent: engine.cgroup_driver is systemd: %w", err)
		}
		o.Systemd = s
		if o.Root == config.Default().Engine.CgroupRoot {
			o.Root = "" // the driver chooses the unit's name
		}
	} else {
		o.Former = &systemd.Bus{} // connects at the first call
	}
	tree, err := cgroup.New(o)
	return cgroup.Delegating{Tree: tree}, err
}
