package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/runtime/native/basens"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// Cgroups are the operations on the node's cgroups that this runtime needs.
type Cgroups interface {
	core.Cgroups
	Dirs(ref core.CgroupRef) (v1 []string, unified string, own map[string]string)
	Devices(ref core.CgroupRef, rules []specs.LinuxDeviceCgroup) error
}

// Options configure a Runtime.
type Options struct {
	Name       string // name of the handler in the config; "" means native
	Dir        string // absolute directory for the runtime's records of containers
	Launcher   core.Launcher
	Supervisor core.Supervisor
	Cgroups    Cgroups
	Host       compile.Host
	// ProcessDir returns the v2 directory for a further process beside another one. It is required
	// for delegated cgroups.
	ProcessDir func(ref core.CgroupRef, pid int) string
	// Spare, unless nil, returns an unused network namespace, or nil if there is none.
	// It is called for containers that want a new one.
	Spare func() *os.File
	// Version is that of the program. Without one, Features returns the version in the build information.
	Version string
	Logger  *slog.Logger // nil means slog.Default
}

// Runtime implements core.Runtime without executing a runtime program.
type Runtime struct {
	o     Options
	log   *slog.Logger
	specs sync.Map // core.ID → *specs.Spec, reduced to the part for execs
	// filters has the compiled filters of confined programs, *specs.LinuxSeccomp → *seccomp.Filter.
	filters sync.Map
}

var _ core.Runtime = (*Runtime)(nil)

// New makes the directory and the base namespace, and returns the Runtime.
func New(o Options) (*Runtime, error) {
	if o.Name == "" {
		o.Name = "native"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Host.LockedKeyring = true // the keeper has one
	if o.Launcher == nil || o.Supervisor == nil || o.Cgroups == nil || !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("runtime %s: needs a launcher, a supervisor, cgroups and an absolute directory: %w", o.Name, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("runtime %s: %w", o.Name, err)
	}
	r := &Runtime{o: o, log: o.Logger.With("runtime", o.Name)}
	var names []string
	for _, h := range r.o.Host.Hierarchies {
		names = append(names, h.Name)
	}
	file, wrong, err := basens.Keep(r.baseDir(), names)
	if r.o.Host.BaseNamespace = file; wrong != nil {
		r.log.Warn("the base mount namespace of containers was broken; made a new one", "error", wrong)
	}
	if err != nil {
		r.o.Host.BaseNamespace = ""
		r.log.Warn("cannot make the base mount namespace; containers start from a copy of the host's mounts, which is slower with many containers", "error", err)
	}
	return r, nil
}

// Check reports damage of the base namespace that all containers start from. New makes it again.
func (r *Runtime) Check() error {
	if r.o.Host.BaseNamespace == "" {
		return nil
	}
	return basens.Check(r.o.Host.BaseNamespace)
}

func (r *Runtime) baseDir() string { return r.o.Dir + ".apart" }

// Release removes the base namespace, for an agent that ends and leaves no containers.
// New makes it again.
func (r *Runtime) Release() error {
	if err := basens.Release(r.baseDir()); err != nil {
		return fmt.Errorf("release runtime %s: %w", r.o.Name, err)
	}
	return nil
}

// Name returns the name of the handler.
func (r *Runtime) Name() string { return r.o.Name }

// Features returns the features of this runtime.
func (r *Runtime) Features(context.Context) (core.RuntimeFeatures, error) {
	version := r.o.Version
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = info.Main.Version
	}
	return core.RuntimeFeatures{
		Version: cmp.Or(version, "devel"), OCIVersionMax: specs.Version, RecursiveReadOnly: true, SupplementalGroups: true, UserNamespaces: true, IDMappedMounts: true, RecursiveIDMaps: true, Seccomp: true, CgroupV2: true, CgroupNamespaces: true,
	}, nil
}

// record is the stored part of a container for later verbs. The spec itself is in the bundle's
// config.json.
type record struct {
	Cgroup core.CgroupRef `json:"cgroup"`
	Bundle string         `json:"bundle"`
	Hooked *hooked        `json:"hooked,omitempty"`
}

// spec returns the part of the container's spec for execs, reading it only once.
func (r *Runtime) spec(id core.ID, rec record) (*specs.Spec, error) {
	if s, ok := r.specs.Load(id); ok {
		return s.(*specs.Spec), nil //nolint:forcetypeassert // nothing else is stored
	}
	s, err := rec.spec()
	if err != nil {
		return nil, err
	}
	kept := execSpec(s)
	r.specs.Store(id, kept)
	return kept, nil
}

// spec reads the container's whole spec.
func (rec record) spec() (*specs.Spec, error) {
	b, err := os.ReadFile(filepath.Join(rec.Bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	var s specs.Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s/config.json is damaged (%w): the container runs on; remove it and create it again: %w", rec.Bundle, err, errdefs.ErrDataLoss)
	}
	return &s, nil
}

func (r *Runtime) path(id core.ID) string { return filepath.Join(r.o.Dir, string(id)) }

func (r *Runtime) load(op string, id core.ID) (record, error) {
	var rec record
	if s := string(id); s == "" || s != filepath.Base(s) || s[0] == '.' {
		return rec, fmt.Errorf("%s container %q: bad ID: %w", op, s, errdefs.ErrInvalidArgument)
	}
	b, err := os.ReadFile(r.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return rec, fmt.Errorf("%s container %s: %w", op, id, errdefs.ErrNotFound)
	}
	if err != nil {
		return rec, fmt.Errorf("%s container %s: %w", op, id, err)
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return record{}, fmt.Errorf("%s container %s: %s is damaged (%w): the container runs on; remove it and create it again: %w", op, id, r.path(id), err, errdefs.ErrDataLoss)
	}
	return rec, nil
}

// Create starts a container's main process, parked before its program or running it.
func (r *Runtime) Create(ctx context.Context, c core.RuntimeCreate) (int, error) {
	pid, err := r.create(ctx, c)
	if err != nil {
		r.specs.Delete(c.ID)
		if pid != 0 { // the process ran, so Delete runs the poststop hooks
			err = errors.Join(err, r.Delete(context.WithoutCancel(ctx), c.ID, true))
		} else {
			_ = os.Remove(r.path(c.ID))
			err = errors.Join(err, r.unprepare(ctx, c))
		}
		return 0, fmt.Errorf("create container %s: %w", c.ID, err)
	}
	return pid, nil
}

func (r *Runtime) create(ctx context.Context, c core.RuntimeCreate) (int, error) {
	if c.Spec == nil || c.Spec.Root == nil || c.Spec.Linux == nil {
		return 0, fmt.Errorf("spec: root and linux must be set: %w", errdefs.ErrInvalidArgument)
	}
	own := c.Spec // the spec for the launch; c.Spec is stored
	if c.Confine != nil && c.Confine.Spec != nil {
		own = c.Confine.Spec
	}
	root := filepath.Join(c.Bundle, own.Root.Path)
	if filepath.IsAbs(own.Root.Path) {
		root = own.Root.Path
	}
	// Make the cgroup in parallel with the plan and the mount points: they do not depend
	// on each other.
	rec := record{Cgroup: c.Cgroup, Bundle: c.Bundle, Hooked: hookedOf(c.Spec, c.HookID)}
	beside := make(chan error, 1)
	go func() { beside <- r.makeCgroup(ctx, c) }()
	spec, spare := r.withSpare(own)
	if spare != nil {
		defer func() { _ = spare.Close() }()
	}
	in := compile.Input{ID: string(c.ID), Bundle: c.Bundle, Spec: spec, Root: root, Cgroup: r.cgroup(c.Cgroup), Host: r.o.Host.Refresh(), Park: true}
	var out compile.Output
	files, err := addDescriptors(&in, c, r.o.Host.Landlock)
	if err == nil {
		if in.Confine != nil {
			in.Confine.Filter = r.filterOf(own.Linux.Seccomp)
		}
		out, err = compile.Container(in)
	}
	if err == nil {
		err = compile.MakePoints(root, out)
	}
	if err == nil && c.Run && c.Confine == nil { // otherwise the start reports it
		err = compile.FindProgram(root, c.Spec)
	}
	if err == nil {
		err = r.write(c, rec)
	}
	if perr := <-beside; err != nil || perr != nil {
		return 0, errors.Join(err, perr)
	}
	if rules := compile.DeviceRules(c.Spec.Linux.Resources); len(rules) > 0 {
		if err := r.o.Cgroups.Devices(c.Cgroup, rules); err != nil {
			return 0, err
		}
	}
	r.specs.Store(c.ID, execSpec(c.Spec))
	l := core.PlanLaunch{
		Launch: core.Launch{Ref: core.Ref{Container: c.ID}, IO: c.IO, UID: c.UID, GID: c.GID},
		Plan:   out.Plan, Park: !c.Run || rec.Hooked != nil, Given: files,
	}
	l.Levels, l.Peak = r.levels(c.Levels)
	launched, err := r.o.Launcher.LaunchPlan(ctx, l)
	if err != nil {
		return launched.Pid, r.startError(ctx, c.ID, nil, err)
	}
	if levels := levelsOf(c.Spec); c.Confined != nil && in.Confine == nil && len(levels) > 0 {
		k := confinement(launched.Pid, &compile.Confine{Landlock: r.o.Host.Landlock})
		k.Levels, k.Left = levels, nil
		c.Confined(k)
	}
	if c.Confined != nil && in.Confine != nil {
		c.Confined(confinement(launched.Pid, in.Confine))
	}
	if rec.Hooked == nil {
		return launched.Pid, nil
	}
	rec.Hooked.Pid = launched.Pid
	err = writeJSON(r.path(c.ID), rec)
	if err == nil && out.Stops {
		if err = r.createHooks(ctx, c.ID, rec); err == nil && compile.JoinsPid(spec) {
			// The process is another one after it has entered its pid namespace.
			rec.Hooked.Pid = r.pid(ctx, c.ID)
			launched.Pid = rec.Hooked.Pid
			err = writeJSON(r.path(c.ID), rec)
		}
	}
	if err == nil && c.Run {
		err = r.startHooked(ctx, c.ID)
	}
	return launched.Pid, err
}

// withSpare returns a spec that joins a spare network namespace where spec wants a new
// one, and that namespace's file, which must stay open until it is joined. A network
// namespace that is to belong to a user namespace cannot be a spare one.
func (r *Runtime) withSpare(spec *specs.Spec) (*specs.Spec, *os.File) {
	at := -1
	for i, ns := range spec.Linux.Namespaces {
		switch {
		case ns.Type == specs.UserNamespace:
			return spec, nil
		case ns.Type == specs.NetworkNamespace && ns.Path == "":
			at = i
		}
	}
	if at < 0 || r.o.Spare == nil {
		return spec, nil
	}
	file := r.o.Spare()
	if file == nil {
		return spec, nil
	}
	with, linux := *spec, *spec.Linux
	linux.Namespaces = slices.Clone(linux.Namespaces)
	linux.Namespaces[at].Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
	with.Linux = &linux
	return &with, file
}

// write stores the record for later verbs.
func (r *Runtime) write(c core.RuntimeCreate, rec record) error {
	if err := writeJSON(filepath.Join(c.Bundle, "config.json"), c.Spec); err != nil {
		return err
	}
	return writeJSON(r.path(c.ID), rec)
}

// unprepare removes files that were made in parallel with a refused plan: another runtime may
// support the spec.
func (r *Runtime) unprepare(ctx context.Context, c core.RuntimeCreate) error {
	err := os.Remove(filepath.Join(c.Bundle, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if !c.Limited {
		err = errors.Join(err, r.o.Cgroups.Remove(context.WithoutCancel(ctx), c.Cgroup))
	}
	return err
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Replace(path, b, 0o600)
}

// execSpec returns the part of a container's spec that an exec needs.
func execSpec(s *specs.Spec) *specs.Spec {
	kept := &specs.Spec{Linux: &specs.Linux{Namespaces: s.Linux.Namespaces, Seccomp: s.Linux.Seccomp, Personality: s.Linux.Personality, MemoryPolicy: s.Linux.MemoryPolicy}}
	if p := s.Linux.Seccomp; p != nil && p.ListenerPath != "" {
		kept.Version, kept.Annotations = s.Version, s.Annotations
	}
	if _, ok := s.Annotations[core.LandlockAnnotation]; ok { // an exec makes its rules from the mounts
		kept.Annotations, kept.Mounts = s.Annotations, s.Mounts
	}
	if hasHooks(s.Hooks) {
		kept.Hooks = s.Hooks
	}
	return kept
}

func (r *Runtime) cgroup(ref core.CgroupRef) compile.Cgroup {
	v1, unified, own := r.o.Cgroups.Dirs(ref)
	return compile.Cgroup{Dirs: v1, Unified: unified, Own: own, Delegated: ref.Delegated()}
}

func (r *Runtime) levels(refs []core.CgroupRef) (levels []core.OOMLevel, peak string) {
	for i, ref := range refs {
		level, p := r.o.Cgroups.OOMLevel(ref)
		levels = append(levels, level)
		if i == 0 {
			peak = p
		}
	}
	return levels, peak
}

// Start releases the parked process, which executes its program.
func (r *Runtime) Start(ctx context.Context, id core.ID) error {
	var err error
	if s, ok := r.specs.Load(id); ok && s.(*specs.Spec).Hooks == nil { //nolint:forcetypeassert // nothing else is stored
		err = r.o.Launcher.Release(ctx, core.Ref{Container: id})
	} else {
		err = r.startHooked(ctx, id)
	}
	if err != nil {
		return r.startError(ctx, id, nil, err)
	}
	return nil
}

// startError explains why process p, or the main process if p is nil, did not start. For a program
// searched in $PATH, execve reports only the error of the last directory, and a killed child
// reports nothing.
func (r *Runtime) startError(ctx context.Context, id core.ID, p *specs.Process, cause error) error {
	rec, err := r.load("start", id)
	if err != nil || errors.Is(cause, core.ErrEnded) {
		return cause
	}
	if strings.Contains(cause.Error(), plan.Died) {
		return r.diedError(ctx, rec, cause)
	}
	if !errdefs.IsNotFound(cause) && !errdefs.IsFailedPrecondition(cause) {
		return cause
	}
	s, err := rec.spec()
	if err != nil || s.Root == nil {
		return cause
	}
	if p != nil {
		s.Process = p
	}
	if s.Process == nil {
		return cause
	}
	root := s.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(rec.Bundle, root)
	}
	if err := compile.FindProgram(root, s); err != nil {
		return err
	}
	var refused *core.StartError
	if errors.As(cause, &refused) && refused.Errno == syscall.ENOENT {
		return &core.StartError{Errno: syscall.ENOENT, Err: fmt.Errorf("%w: the program exists, but its interpreter or loader does not", cause)}
	}
	return cause
}

// diedError explains why a child died before its program ran: starting it may need more
// memory than its limit.
func (r *Runtime) diedError(ctx context.Context, rec record, cause error) error {
	ref := rec.Cgroup
	level, _ := r.o.Cgroups.OOMLevel(ref)
	b, err := os.ReadFile(level.Path)
	if err != nil {
		return cause
	}
	for line := range strings.Lines(string(b)) {
		n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill ")
		if !ok || n == "0" {
			continue
		}
		limit := "its memory limit"
		if res, err := r.o.Cgroups.Resources(ctx, ref); err == nil && res != nil && res.Memory != nil && res.Memory.Limit != nil {
			limit = limitText(*res.Memory.Limit, rec.spec)
		}
		return fmt.Errorf("out of memory: %s is too small to start the program: raise it: %w", limit, errdefs.ErrResourceExhausted)
	}
	return cause
}

// limitText names a memory limit that the kernel has in force. The kernel counts whole pages: of
// a limit below one page it answers 0, and the spec has the number that the user gave.
func limitText(have int64, spec func() (*specs.Spec, error)) string {
	if have == 0 {
		if s, err := spec(); err == nil && s.Linux != nil && s.Linux.Resources != nil && s.Linux.Resources.Memory != nil && s.Linux.Resources.Memory.Limit != nil {
			have = *s.Linux.Resources.Memory.Limit
		}
	}
	switch have {
	case 0:
		return "its memory limit, which is less than a page,"
	case 1:
		return "its memory limit of 1 byte"
	}
	return fmt.Sprintf("its memory limit of %d bytes", have)
}

// Exec starts a further process in the container.
func (r *Runtime) Exec(ctx context.Context, e core.RuntimeExec) (core.Launched, error) {
	if e.Ref.Process == core.Main || e.Spec == nil {
		return core.Launched{}, fmt.Errorf("exec in container %s: needs a process ID and a spec: %w", e.Ref.Container, errdefs.ErrInvalidArgument)
	}
	rec, err := r.load("exec in", e.Ref.Container)
	if err != nil {
		return core.Launched{}, err
	}
	spec, err := r.spec(e.Ref.Container, rec)
	if err != nil {
		return core.Launched{}, fmt.Errorf("exec in container %s: %w", e.Ref.Container, err)
	}
	in := compile.ExecInput{ID: string(e.Ref.Container), Process: e.Spec, Spec: spec, Cgroup: r.cgroup(rec.Cgroup), Host: r.o.Host, Bundle: rec.Bundle}
	if p := spec.Linux.Seccomp; p != nil && p.ListenerPath != "" {
		in.Pid = r.pid(ctx, e.Ref.Container)
	}
	if in.Cgroup.Delegated {
		in.Cgroup.Unified = r.o.ProcessDir(rec.Cgroup, r.pid(ctx, e.Ref.Container))
	}
	out, err := compile.Exec(in)
	if err != nil {
		return core.Launched{}, fmt.Errorf("exec in container %s: %w", e.Ref.Container, err)
	}
	l := core.PlanLaunch{
		Launch: core.Launch{Ref: e.Ref, IO: e.IO, Attach: e.Attach, UID: e.UID, GID: e.GID},
		Plan:   out.Plan, Target: core.Ref{Container: e.Ref.Container},
	}
	l.Levels, l.Peak = r.levels(e.Levels)
	launched, err := r.o.Launcher.LaunchPlan(ctx, l)
	if err != nil && r.ends(ctx, e.Ref.Container, strings.Contains(err.Error(), plan.Died)) {
		return launched, fmt.Errorf("exec in container %s: it has ended or is about to (%s): %w", e.Ref.Container, err.Error(), errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return launched, fmt.Errorf("exec in container %s: %w", e.Ref.Container, r.startError(ctx, e.Ref.Container, e.Spec, err))
	}
	return launched, nil
}

// pid returns the pid of a container's main process, or 0 if it is not running.
func (r *Runtime) pid(ctx context.Context, id core.ID) int {
	all, _ := r.o.Supervisor.Processes(ctx)
	for _, p := range all {
		if p.Ref == (core.Ref{Container: id}) {
			return p.Pid
		}
	}
	return 0
}

// Pause freezes the container's cgroup.
func (r *Runtime) Pause(ctx context.Context, id core.ID) error {
	return r.freeze(ctx, "pause", id, true)
}

// Resume thaws the container's cgroup.
func (r *Runtime) Resume(ctx context.Context, id core.ID) error {
	return r.freeze(ctx, "resume", id, false)
}

func (r *Runtime) freeze(ctx context.Context, op string, id core.ID, frozen bool) error {
	rec, err := r.load(op, id)
	if err != nil {
		return err
	}
	return r.o.Cgroups.Freeze(ctx, rec.Cgroup, frozen)
}

// Update changes the container's resource limits.
func (r *Runtime) Update(ctx context.Context, id core.ID, res *specs.LinuxResources) error {
	rec, err := r.load("update", id)
	if err != nil {
		return err
	}
	return r.o.Cgroups.Update(ctx, rec.Cgroup, res)
}

// Delete removes a container; with force it kills the processes that are left.
func (r *Runtime) Delete(ctx context.Context, id core.ID, force bool) error {
	rec, err := r.load("delete", id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if errdefs.IsDataLoss(err) {
		// Its cgroup is below the sandbox's and is removed with it.
		r.specs.Delete(id)
		return os.Remove(r.path(id))
	}
	switch {
	case err != nil:
	case force:
		err = r.o.Cgroups.Kill(ctx, rec.Cgroup)
	default:
		// Removing the cgroup would fail too, but only after waiting.
		if pids, _ := r.o.Cgroups.Pids(ctx, rec.Cgroup); len(pids) > 0 {
			err = fmt.Errorf("delete container %s: processes %v run: %w", id, pids, errdefs.ErrFailedPrecondition)
		}
	}
	if err == nil {
		err = r.o.Cgroups.Remove(ctx, rec.Cgroup)
	}
	if err != nil {
		return err
	}
	if rec.Hooked != nil {
		// Run them before the record is removed: after a crash in between they run
		// again, instead of never.
		r.hooks(id, rec, specs.StateStopped).each(ctx, "poststop", rec.Hooked.Hooks.Poststop)
	}
	r.specs.Delete(id)
	if err := os.Remove(r.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	return nil
}

// List returns the containers with a record.
func (r *Runtime) List(context.Context) ([]core.ID, error) {
	entries, err := os.ReadDir(r.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("list containers of %s: %w", r.o.Name, err)
	}
	var ids []core.ID
	for _, e := range entries {
		if len(e.Name()) == 64 { // skip partially written files
			ids = append(ids, core.ID(e.Name()))
		}
	}
	return ids, nil
}
