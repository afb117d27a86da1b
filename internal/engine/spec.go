package engine

import (
	"context"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/dirs"
	"github.com/longshore/longshore/internal/engine/own"
)

// version is the ociVersion to write for a runtime.
func (e *Engine) version(ctx context.Context, rt core.Runtime) string {
	f, err := e.featuresOf(ctx, rt)
	if err != nil || f.OCIVersionMax == "" {
		return specs.Version
	}
	return f.OCIVersionMax
}

// featuresOf asks a runtime once.
func (e *Engine) featuresOf(ctx context.Context, rt core.Runtime) (core.RuntimeFeatures, error) {
	if f, ok := e.features.Load(rt.Name()); ok {
		return f.(core.RuntimeFeatures), nil //nolint:forcetypeassert // stored below
	}
	f, err := rt.Features(ctx)
	if err == nil {
		e.features.Store(rt.Name(), f)
	}
	return f, err
}

// own overwrites what the engine owns in a container's spec.
func (b *build) own(ctx context.Context) error {
	in := own.Input{
		Sandbox: &b.sb, Config: &b.cfg, Version: b.e.version(ctx, b.rt), Cgroup: b.c.Cgroup, Init: b.e.o.Init,
		Join: map[specs.LinuxNamespaceType]string{}, Volumes: b.volumes, Files: dirs.Files(b.sb.Dir),
	}
	for _, j := range b.cfg.Join {
		path, err := b.joinPath(j)
		if err != nil {
			return err
		}
		in.Join[j.Namespace] = path
	}
	own.Apply(b.spec, in)
	return nil
}

// joinPath names a namespace of a sibling.
func (b *build) joinPath(j core.Join) (string, error) {
	sib, err := b.e.container(j.Container)
	if err != nil {
		return "", fmt.Errorf("join %s namespace: %w", j.Namespace, err)
	}
	file := own.NamespaceFile(j.Namespace)
	if sib.Sandbox != b.sb.ID || file == "" || sib.Main.Pid == 0 {
		return "", fmt.Errorf("join %s namespace of container %s, which is %s: %w", j.Namespace, j.Container, sib.State, errJoin)
	}
	return fmt.Sprintf("/proc/%d/ns/%s", sib.Main.Pid, file), nil
}
