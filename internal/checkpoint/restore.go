package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/checkpoint/archive"
	"github.com/longshore/longshore/internal/checkpoint/criurun"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/inroot"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/treecopy"
)

// Fits implements core.Checkpointer.
func (c *Checkpointer) Fits(_ context.Context, req core.RestoreRequest) error {
	_, _, err := c.fitting(&req)
	return err
}

// fitting returns the description of a container's checkpoint and the container's spec, after it has compared them.
func (c *Checkpointer) fitting(req *core.RestoreRequest) (*description, *specs.Spec, error) {
	ct := &req.Container
	d, err := c.complete(ct.ID)
	if err != nil {
		return nil, nil, err
	}
	spec, err := ocispec.BundleSpec(ct.Bundle)
	if err == nil {
		err = c.storable(ct, spec)
	}
	if err == nil {
		err = fits(&d, req, spec)
	}
	if err == nil {
		err = c.examineFilters(ct.ID, spec)
	}
	return &d, spec, err
}

// Restore implements core.Checkpointer.
func (c *Checkpointer) Restore(ctx context.Context, req core.RestoreRequest) (int, error) {
	program, err := c.probe.path(ctx)
	if err != nil {
		return 0, err
	}
	ct := &req.Container
	d, spec, err := c.fitting(&req)
	if err != nil {
		return 0, err
	}
	mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", ct.Main.Pid))
	if err != nil {
		return 0, fmt.Errorf("its waiting process has ended: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	defer func() { _ = mounts.Close() }()
	if err := waits(ct); err != nil {
		return 0, err
	}
	if req.Root {
		if err := c.applyRoot(ct); err != nil {
			return 0, err
		}
	}
	work, err := c.newWork(ct.ID)
	if err != nil {
		return 0, err
	}
	launch, err := c.restoreLaunch(d, &req, spec, work, program, mounts)
	if err != nil {
		return 0, err
	}
	g, err := newGate(c.dir(ct.ID), work)
	if err != nil {
		return 0, err
	}
	// The waiting process has done its part: its mounts stay with the open namespace.
	if err := req.Vacate(ctx); err != nil {
		return 0, errors.Join(err, g.close())
	}
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	pid, err := c.launchChecked(ctx, g, launch, ct, func(criu, first int) error { return c.examine(ctx, ct, spec, criu, first) })
	if err != nil {
		if !errdefs.IsPermissionDenied(err) {
			err = failure("make its processes", filepath.Join(work, restoreLog), err)
		}
		clean := context.WithoutCancel(ctx)
		return 0, errors.Join(err, c.settle(clean, ct.ID, func() error { return c.o.Cgroups.Kill(clean, ct.Cgroup) }))
	}
	return pid, os.RemoveAll(work)
}

// restoreLog is the name of CRIU's log of a restore.
const restoreLog = "restore.log"

// fits compares a checkpoint with the container that it is to become.
func fits(d *description, req *core.RestoreRequest, spec *specs.Spec) error {
	differs := func(format string, args ...any) error {
		return fmt.Errorf("the checkpoint does not fit: %s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
	}
	if d.Image != "" && req.Container.Image != "" && d.Image != string(req.Container.Image) {
		return differs("it is of the image %s (%s), and the container of %s", d.ImageName, d.Image, req.Container.Image)
	}
	for _, n := range []struct {
		kind specs.LinuxNamespaceType
		was  bool
	}{{specs.NetworkNamespace, d.Net != ""}, {specs.PIDNamespace, d.Pid != ""}, {specs.IPCNamespace, d.IPC}, {specs.UTSNamespace, d.UTS}} {
		if is := pathOf(spec, n.kind) != ""; is != n.was {
			return differs("one of the two shares its %s namespace with its sandbox, the other does not", n.kind)
		}
	}
	mode := req.TCP
	if mode == core.TCPRefuse {
		mode = d.TCP
	}
	if mode != core.TCPKeep || len(d.Addresses) == 0 {
		return nil
	}
	if d.TCP != core.TCPKeep {
		return differs("it was made without its TCP connections")
	}
	for _, a := range req.Sandbox.Network.Addrs {
		if slices.Contains(d.Addresses, a.String()) {
			return nil
		}
	}
	return differs("its TCP connections are of the address %s, which the container does not have: close them, or give it that address", strings.Join(d.Addresses, ", "))
}

func pathOf(spec *specs.Spec, kind specs.LinuxNamespaceType) string {
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == kind {
			return ns.Path
		}
	}
	return ""
}

// waits checks that a container's process is the container's own: its number could be another process's by now.
func waits(ct *core.Container) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", ct.Main.Pid))
	if err != nil || !strings.Contains(string(b), ct.Cgroup.Path) {
		return fmt.Errorf("its waiting process has ended: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// maxDeleted bounds the list of deleted files.
const maxDeleted = 64 << 20

// applyRoot makes the changes of the root file system in a new container.
func (c *Checkpointer) applyRoot(ct *core.Container) error {
	diff, err := os.Open(filepath.Join(c.dir(ct.ID), archive.Root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = diff.Close() }()
	var deleted []string
	list := filepath.Join(c.dir(ct.ID), archive.Deleted)
	if st, err := os.Stat(list); err == nil && st.Size() <= maxDeleted {
		b, err := os.ReadFile(list)
		if err == nil {
			err = json.Unmarshal(b, &deleted)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w: %w", archive.Deleted, err, errdefs.ErrInvalidArgument)
		}
	}
	in := inroot.Container{Container: *ct}
	err = in.RunAlone(func(root *os.File) error {
		if err := treecopy.Delete(root, deleted); err != nil {
			return err
		}
		return treecopy.Unpack(diff, root, treecopy.Target{At: "/"}, treecopy.Theirs, in.IDs)
	})
	if err != nil {
		return fmt.Errorf("change its root file system: %w", err)
	}
	return nil
}

// restoreLaunch returns the launch of CRIU, which leaves the container's first process behind.
func (c *Checkpointer) restoreLaunch(d *description, req *core.RestoreRequest, spec *specs.Spec, work, program string, mounts *os.File) (core.CommandLaunch, error) {
	ct := &req.Container
	l := core.CommandLaunch{Launch: req.Launch, PidFile: filepath.Join(work, "pid")}
	stage := filepath.Join(work, "mounts")
	if err := os.Mkdir(stage, 0o700); err != nil {
		return l, err
	}
	j := criurun.Job{Dir: work, Stage: stage, Namespace: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), mounts.Fd())}
	j.Args = []string{
		program, "restore", "--no-default-config", "--images-dir", filepath.Join(c.dir(ct.ID), archive.Images), "--work-dir", work, "--log-file", restoreLog, "-v2",
		"--manage-cgroups=ignore", "--root", filepath.Join(ct.Bundle, "rootfs"), "--restore-detached", "--pidfile", l.PidFile, "--link-remap",
		"--action-script", filepath.Join(c.dir(ct.ID), scriptFile),
	}
	for _, m := range d.Mounts {
		j.Mounts = append(j.Mounts, criurun.Mount{Target: m.Target, Name: m.Name})
		j.Args = append(j.Args, "--external", "mnt["+m.Name+"]:"+filepath.Join(stage, m.Name))
	}
	for _, f := range d.Files {
		if fd := streamFD(f.Stream); fd != "/dev/null" {
			j.Args = append(j.Args, "--inherit-fd", "fd["+fd+"]:"+f.Name)
		} else {
			j.Files = append(j.Files, criurun.File{Path: fd, Write: true, Arg: "fd[%d]:" + f.Name})
		}
	}
	for kind, name := range map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: d.Net, specs.PIDNamespace: d.Pid} {
		if name != "" {
			j.Files = append(j.Files, criurun.File{Path: pathOf(spec, kind), Arg: "fd[%d]:" + name})
		}
	}
	for kind, joined := range map[specs.LinuxNamespaceType]bool{specs.IPCNamespace: d.IPC, specs.UTSNamespace: d.UTS} {
		if joined {
			j.Args = append(j.Args, "--join-ns", string(kind)+":"+pathOf(spec, kind))
		}
	}
	if d.FileLocks {
		j.Args = append(j.Args, "--file-locks")
	}
	switch {
	case req.TCP == core.TCPClose || req.TCP == core.TCPRefuse && d.TCP == core.TCPClose:
		j.Args = append(j.Args, "--tcp-close")
	case d.TCP == core.TCPKeep:
		j.Args = append(j.Args, "--tcp-established")
	}
	v1, unified, _ := c.o.Cgroups.Dirs(ct.Cgroup)
	if j.Cgroups = v1; unified != "" {
		j.Cgroups = append(j.Cgroups, unified)
	}
	j.NewCgroups = slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.CgroupNamespace && ns.Path == "" })
	var err error
	l.Command, err = c.command(work, j)
	return l, err
}
