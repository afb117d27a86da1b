package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/weaken"
)

// runtimeName returns the runtime that a container asks for, or else that its sandbox does; "" is
// the node's default.
func runtimeName(sb *core.Sandbox, cfg *core.ContainerConfig) string {
	if cfg.Runtime != "" || sb.AnyRuntime {
		return cfg.Runtime
	}
	return sb.Config.Runtime
}

// version returns the ociVersion to write for a runtime.
func (e *Engine) version(ctx context.Context, rt core.Runtime) string {
	f, err := e.featuresOf(ctx, rt)
	if err != nil || f.OCIVersionMax == "" {
		return specs.Version
	}
	return f.OCIVersionMax
}

// featuresOf returns a runtime's features; it asks each runtime once.
func (e *Engine) featuresOf(ctx context.Context, rt core.Runtime) (core.RuntimeFeatures, error) {
	if f, ok := e.features.Load(rt.Name()); ok {
		return f.(core.RuntimeFeatures), nil //nolint:forcetypeassert // of the type that is stored below
	}
	f, err := rt.Features(ctx)
	if err == nil {
		e.features.Store(rt.Name(), f)
	}
	return f, err
}

// own overwrites the engine's own fields in a container's spec.
func (b *build) own(ctx context.Context) error {
	in := owned.Spec{
		Sandbox: &b.sb, Config: &b.cfg, Version: b.e.version(ctx, b.rt), Cgroup: b.c.Cgroup, Init: b.e.o.Init,
		Join: map[specs.LinuxNamespaceType]string{}, Volumes: b.volumes,
	}
	if err := b.etc(ctx, &in); err != nil {
		return err
	}
	for _, j := range b.cfg.Join {
		path, err := b.joinPath(j)
		if err != nil {
			return err
		}
		in.Join[j.Namespace] = path
	}
	owned.Apply(b.spec, in)
	list := append(b.relabel, ocispec.TakeRelabels(b.spec)...)
	if b.e.o.Labels == nil || !b.cfg.Labelled {
		return nil
	}
	return b.e.o.Labels.Label(&b.sb.Config, &b.c.Config, b.spec, list)
}

// etc gives the container the sandbox's files in /etc, except where its spec has mounts: in the
// container's own layer if it has one, otherwise as binds.
func (b *build) etc(ctx context.Context, in *owned.Spec) (err error) {
	in.Files = slices.DeleteFunc(etc.Files(b.sb.Dir), func(name string) bool { return owned.MountTaken(b.spec.Mounts, "/etc/"+name) })
	if weaken.Off(weaken.SharedEtc) {
		in.Etc = b.sb.Dir
		return nil
	}
	if b.cfg.Root.Image != "" && !etc.Covered(b.spec.Mounts) {
		if in.Files, err = etc.Write(b.fs, &b.sb, in.Files); err != nil {
			return err
		}
	}
	if len(in.Files) == 0 {
		return nil
	}
	if !etc.Shared(&b.sb) { // otherwise other containers already use it
		b.pipeline.Undo.Add("etc", func(ctx context.Context) error { return etc.Remove(ctx, b.e.o.Roots, b.sb.Dir) })
	}
	in.Etc, err = etc.Share(ctx, b.e.o.Roots, &b.sb, etc.Files(b.sb.Dir))
	return err
}

// joinPath returns the path of a sibling's namespace.
func (b *build) joinPath(j core.Join) (string, error) {
	sib, err := b.e.records.Container(j.Container)
	if err != nil {
		return "", fmt.Errorf("join %s namespace: %w", j.Namespace, err)
	}
	file := owned.NamespaceFile(j.Namespace)
	if sib.Sandbox != b.sb.ID || file == "" || sib.Main.Pid == 0 {
		return "", fmt.Errorf("join %s namespace of container %s, which is %s: %w", j.Namespace, j.Container, sib.State, errJoin)
	}
	return fmt.Sprintf("/proc/%d/ns/%s", sib.Main.Pid, file), nil
}
