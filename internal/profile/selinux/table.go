package selinux

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// Table implements core.LabelTable.
type Table struct {
	// All labels every sandbox that asks for labels; otherwise only those that name a part of them.
	All bool
	// Enabled reports whether the kernel has SELinux on.
	Enabled func() bool
}

var _ core.LabelTable = Table{}

// Take implements core.LabelTable. The levels in use are those of the records.
func (t Table) Take(tx core.Tx, cfg *core.SandboxConfig, f core.RuntimeFeatures) error {
	ask := cfg.SELinux
	if ask == nil || !t.All && *ask == (core.SELinux{}) || !t.Enabled() {
		return nil
	}
	level := ask.Level
	if level == "" {
		holder, joins, err := holder(tx, cfg)
		if joins && holder == "" || err != nil {
			return err // the container that shares its namespace has no label
		}
		level = LevelOf(holder)
	}
	if f.Path != "" {
		// It would not label the standard streams, and the kernel would replace them.
		return fmt.Errorf("SELinux labels: only the runtime native gives labelled containers their output, and the runtime here is %s: %w", f.Path, errdefs.ErrInvalidArgument)
	}
	if level == "" {
		var err error
		if level, err = free(tx); err != nil {
			return err
		}
	}
	_, files, err := labels(ask, level)
	cfg.FileLabel = files
	return err
}

// holder returns the file label of the sandbox with the pid or IPC namespace that cfg joins. Processes in one namespace have
// the same level, because they use each other's objects.
func holder(tx core.Tx, cfg *core.SandboxConfig) (label string, joins bool, err error) {
	for _, n := range []core.Namespace{cfg.Namespaces.IPC, cfg.Namespaces.PID} {
		if n.Mode != core.Joined {
			continue
		}
		sb, err := tx.Sandboxes().Get(n.Holder)
		if err != nil {
			return "", joins, err
		}
		if joins && label != sb.Config.FileLabel {
			return "", joins, fmt.Errorf("the pid and the IPC namespace are of containers with different SELinux labels: %w", errdefs.ErrInvalidArgument)
		}
		joins, label = true, sb.Config.FileLabel
	}
	return label, joins, nil
}

// free returns a level that no sandbox has.
func free(tx core.Tx) (string, error) {
	used := map[string]bool{}
	for sb := range tx.Sandboxes().Stored("") {
		if sb.Config.FileLabel != "" {
			used[LevelOf(sb.Config.FileLabel)] = true
		}
	}
	return choose(used)
}

// choose returns a level that is not used.
func choose(used map[string]bool) (string, error) {
	for range attempts {
		level := pair(rand.IntN(categories), rand.IntN(categories-1)) //nolint:gosec // not a secret
		if !used[level] {
			return level, nil
		}
	}
	return "", fmt.Errorf("all SELinux levels are in use: %w", errdefs.ErrUnavailable)
}

// labels returns the labels of the processes and the files of a sandbox with a level.
func labels(ask *core.SELinux, level string) (process, files string, err error) {
	process, files, err = ocispec.SELinux{User: ask.User, Role: ask.Role, Type: ask.Type, Level: level}.Labels()
	if err != nil || ask.FileType == "" {
		return process, files, err
	}
	if strings.ContainsAny(ask.FileType, ": \x00") {
		return "", "", fmt.Errorf("selinux label part %q: %w", ask.FileType, errdefs.ErrInvalidArgument)
	}
	parts := strings.SplitN(files, ":", 4)
	parts[2] = ask.FileType
	return process, strings.Join(parts, ":"), nil
}

// Label implements core.LabelTable.
func (t Table) Label(sb *core.SandboxConfig, c *core.ContainerConfig, s *specs.Spec, mounts []core.Relabel) error {
	ask := sb.SELinux
	if ask == nil {
		return nil
	}
	if c.FileLabel == "" && (t.Enabled() || *ask == (core.SELinux{})) {
		return nil
	}
	// Where SELinux is off, the labels that a request names are taken out again, with a warning.
	process, files, err := labels(ask, cmp.Or(LevelOf(c.FileLabel), ask.Level))
	if err != nil {
		return err
	}
	s.Process.SelinuxLabel, s.Linux.MountLabel = process, files
	if c.FileLabel == "" {
		return nil
	}
	_, shared, err := labels(ask, Shared)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		label := shared
		if m.Private {
			label = files
		}
		if err := Relabel(m.Path, label); err != nil {
			return fmt.Errorf("mount %s: %w", m.Path, err)
		}
	}
	return nil
}
