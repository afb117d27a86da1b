package granted

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/document"
)

// Options configure a Runtime.
type Options struct {
	// Inner launches the programs, and all containers that are inits of sandboxes.
	Inner core.Runtime
	// Dir is an absolute directory of the runtime's own. The empty root is in it.
	Dir     string
	Cgroups core.Cgroups
	// Board gives handles; nil gives none.
	Board  Board
	Logger *slog.Logger
	// Modules keeps compiled WebAssembly modules; nil keeps nothing.
	Modules Modules
	// Policy has the operator's limits; nil allows everything that an ordinary container would
	// have.
	Policy *document.PolicyFile
}

// Runtime implements core.Runtime.
type Runtime struct {
	core.Runtime
	o Options
}

var _ core.NamedRuntime = (*Runtime)(nil)

// New makes the empty root, and returns the Runtime.
func New(o Options) (*Runtime, error) {
	if o.Inner == nil || o.Cgroups == nil || !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("runtime %s: needs a runtime, cgroups and an absolute directory: %w", core.GrantHandler, errdefs.ErrInvalidArgument)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{Runtime: o.Inner, o: o}
	if err := os.MkdirAll(r.emptyRoot(), 0o555); err != nil {
		return nil, fmt.Errorf("runtime %s: %w", core.GrantHandler, err)
	}
	return r, nil
}

func (r *Runtime) emptyRoot() string { return filepath.Join(r.o.Dir, "empty") }

// Name implements core.Runtime.
func (r *Runtime) Name() string { return core.GrantHandler }

// OnlyWhenNamed implements core.NamedRuntime.
func (r *Runtime) OnlyWhenNamed() {}

// Exec implements core.Runtime. It refuses: the root of such a program is empty, and an exec would
// get all of its descriptors.
func (r *Runtime) Exec(_ context.Context, e core.RuntimeExec) (core.Launched, error) {
	return core.Launched{}, fmt.Errorf("exec in container %s: the program holds only its descriptors, and runtime %s starts no other beside it: %w", e.Ref.Container, core.GrantHandler, errdefs.ErrFailedPrecondition)
}

// Create implements core.Runtime.
func (r *Runtime) Create(ctx context.Context, c core.RuntimeCreate) (int, error) {
	if c.Init {
		return r.Runtime.Create(ctx, c)
	}
	opened, err := r.open(ctx, c)
	defer opened.close()
	if err != nil {
		return 0, fmt.Errorf("create container %s: %w", c.ID, err)
	}
	if err := r.limit(ctx, c); err != nil {
		return 0, fmt.Errorf("create container %s: %w", c.ID, err)
	}
	c.Given, c.Confine, c.Confined = opened.given, opened.confine, accepted(c.Confined, opened.resolved, opened.denied)
	if opened.resolved.Has(grant.Shutdown) {
		c.IO.Stdin = core.StdinOpen // the keeper holds its other end, and StopContainer closes it
	}
	pid, err := r.Runtime.Create(ctx, c)
	if err == nil && (opened.resolved.Has(grant.Server) || opened.resolved.Has(grant.Client)) {
		r.bind(ctx, c.ID, pid)
	}
	return pid, err
}

// defaultPids bounds the threads of a program without a limit in its spec.
const defaultPids = 1024

// limit adds limits that a program's spec lacks.
func (r *Runtime) limit(ctx context.Context, c core.RuntimeCreate) error {
	if res := c.Spec.Linux.Resources; res != nil && res.Pids != nil && res.Pids.Limit != nil && *res.Pids.Limit > 0 {
		return nil
	}
	limit := int64(defaultPids)
	return r.o.Cgroups.Update(ctx, c.Cgroup, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}})
}

// opened has the open files of one launch.
type opened struct {
	given   []core.Given
	confine *core.Confine
	files   []*os.File
	// module is a WebAssembly program, and compiled its compiled form; both may be nil.
	module, compiled *os.File

	resolved *grant.Resolved
	denied   []grant.Denied
}

func (h *opened) close() {
	if h == nil {
		return
	}
	for _, f := range h.files {
		_ = f.Close()
	}
}

func (h *opened) add(f *os.File, access core.Access) {
	h.files, h.given = append(h.files, f), append(h.given, core.Given{File: f, Access: access})
}

// open resolves the container's document and opens its grants. The caller must close the result
// after an error, too.
func (r *Runtime) open(ctx context.Context, c core.RuntimeCreate) (*opened, error) {
	h := &opened{}
	if c.Spec == nil || c.Spec.Process == nil || c.Spec.Linux == nil || len(c.Spec.Process.Args) == 0 {
		return h, fmt.Errorf("spec: process, args and linux must be set: %w", errdefs.ErrInvalidArgument)
	}
	switch {
	case c.Spec.Process.Terminal || c.IO.TTY:
		return h, refused("a terminal")
	case c.IO.Stdin != core.StdinClosed:
		return h, refused("a standard input")
	case c.Spec.Hooks != nil && !noHooks(c.Spec.Hooks):
		return h, refused("hooks")
	}
	doc, denied, err := r.decide(c)
	if err != nil {
		return h, err
	}
	module, err := openModule(filepath.Join(c.Bundle, "rootfs"), c.Spec.Process)
	if err != nil {
		return h, err
	}
	resolve := grant.Resolve
	if module != nil {
		if err := r.addModule(ctx, h, c, module); err != nil {
			return h, err
		}
		resolve = grant.ResolveWasm
	}
	mounts := mountsOf(c.Spec)
	has := carried{spec: c.Spec, mounts: mounts, secrets: secretsOf(c, mounts), user: userOf(c)}
	names, err := has.secrets.named(doc)
	var resolved *grant.Resolved
	if err == nil {
		resolved, err = resolve(doc, grant.Request{Mounts: rights(mounts), Env: c.Spec.Process.Env, Secrets: names, Identity: identities(c)})
	}
	if err != nil {
		return h, fmt.Errorf("%s: %w: %w", core.GrantAnnotation, err, errdefs.ErrInvalidArgument)
	}
	if n := len(resolved.Descriptors) + 4; n > core.MaxGiven { // with the argument, the program, a module and its compiled form
		return h, fmt.Errorf("%s: %d grants, at most %d are possible: %w", core.GrantAnnotation, n-4, core.MaxGiven-4, errdefs.ErrInvalidArgument)
	}
	h.resolved, h.denied = resolved, denied
	first := resolved.Argdata
	if module != nil {
		if first, err = h.job(c.Spec.Process, resolved); err != nil {
			return h, err
		}
	}
	argument, err := sealed("argdata", first)
	if err != nil {
		return h, err
	}
	h.add(argument, 0)
	for _, d := range resolved.Descriptors {
		err := h.grant(d.Grant, has)
		if d.Grant.Kind == grant.Server || d.Grant.Kind == grant.Client {
			err = r.handle(ctx, h, c, d.Grant)
		}
		if err != nil {
			return h, fmt.Errorf("grant %s (%s): %w", d.Name, d.Grant, err)
		}
	}
	spec := c.Spec
	var program *os.File
	if module != nil {
		spec, resolved = h.ofWorker(c.Spec, resolved)
		program, err = openWorker()
	} else {
		program, err = openProgram(filepath.Join(c.Bundle, "rootfs"), c.Spec.Process)
	}
	if err != nil {
		return h, err
	}
	h.files = append(h.files, program)
	h.confine = &core.Confine{Program: program, Spec: r.spec(spec, resolved)}
	return h, nil
}

func noHooks(h *specs.Hooks) bool {
	return len(slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop)) == 0 //nolint:staticcheck // Prestart is still sent
}

func refused(what string) error {
	return fmt.Errorf("%s: not possible for a program that holds only its descriptors: %w", what, errdefs.ErrFailedPrecondition)
}
