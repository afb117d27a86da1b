package translate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// checkMounts refuses mounts that cannot be.
func (a *Task) checkMounts() error {
	seen := map[string]bool{}
	for _, f := range a.files {
		seen[f.Target] = true
	}
	for _, m := range a.mounts {
		target := path.Clean(m.GetTarget())
		if !path.IsAbs(m.GetTarget()) || target == "/" || strings.ContainsRune(target, 0) || slices.Contains(strings.Split(m.GetTarget(), "/"), "..") {
			return invalid.Errorf("mount target %q is no absolute path below /, or has .. in it", m.GetTarget())
		}
		if seen[target] {
			return invalid.Errorf("two mounts, secrets or configs at %s", target)
		}
		seen[target] = true
		if m.GetType() == swarmv1.Mount_CLUSTER {
			if _, err := a.attachment(m); err != nil {
				return err
			}
			continue
		}
		if err := checkMount(m); err != nil {
			return fmt.Errorf("mount at %s: %w", target, err)
		}
	}
	return nil
}

func checkMount(m *swarmv1.Mount) error {
	if strings.ContainsRune(m.GetSource(), 0) {
		return invalid.Errorf("source %q", m.GetSource())
	}
	kind := m.GetType()
	switch {
	case m.GetBindOptions() != nil && kind != swarmv1.Mount_BIND, m.GetTmpfsOptions() != nil && kind != swarmv1.Mount_TMPFS,
		m.GetVolumeOptions() != nil && kind != swarmv1.Mount_VOLUME && kind != swarmv1.Mount_CLUSTER:
		return invalid.Errorf("type %s with the options of another type", strings.ToLower(kind.String()))
	}
	switch kind {
	case swarmv1.Mount_BIND:
		if !path.IsAbs(m.GetSource()) {
			return invalid.Errorf("source %q is not an absolute path", m.GetSource())
		}
		_, err := bind(m)
		return err
	case swarmv1.Mount_VOLUME:
		v := m.GetVolumeOptions()
		switch d := v.GetDriverConfig(); {
		case d.GetName() != "" && d.GetName() != "local":
			return notServed("volume driver %q", d.GetName())
		case strings.ContainsAny(m.GetSource(), "/") || m.GetSource() == "." || m.GetSource() == "..":
			return invalid.Errorf("volume name %q", m.GetSource())
		case v.GetSubpath() != "" && (!filepath.IsLocal(v.GetSubpath()) || strings.ContainsRune(v.GetSubpath(), 0)):
			return invalid.Errorf("subpath %q leads out of the volume", v.GetSubpath())
		case v.GetSubpath() != "" && m.GetSource() == "":
			return invalid.Errorf("subpath %q of a volume without a name, which is empty", v.GetSubpath())
		}
	case swarmv1.Mount_TMPFS:
		if m.GetSource() != "" {
			return invalid.Errorf("a tmpfs has no source")
		}
		_, err := tmpfsOptions(m)
		return err
	default:
		return notServed("mounts of the type %s", strings.ToLower(m.GetType().String()))
	}
	return nil
}

// bind is a bind mount of the task. As with docker, a read-only one includes the mounts below it,
// unless it says otherwise or has a propagation from the node.
func bind(m *swarmv1.Mount) (specs.Mount, error) {
	o := m.GetBindOptions()
	propagation := strings.ToLower(o.GetPropagation().String())
	private := o.GetPropagation() == swarmv1.Mount_BindOptions_RPRIVATE || o.GetPropagation() == swarmv1.Mount_BindOptions_PRIVATE
	switch {
	case o.GetReadonlynonrecursive() && o.GetReadonlyforcerecursive():
		return specs.Mount{}, invalid.Errorf("read-only recursively and not")
	case (o.GetReadonlynonrecursive() || o.GetReadonlyforcerecursive()) && !m.GetReadonly():
		return specs.Mount{}, invalid.Errorf("options of a read-only mount for one that is not")
	case o.GetReadonlyforcerecursive() && !private:
		return specs.Mount{}, invalid.Errorf("recursively read-only with %s propagation", propagation)
	}
	return ocispec.Bind{
		Source: path.Clean(m.GetSource()), Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadonly(), NonRecursive: o.GetNonrecursive(), Propagation: propagation,
		RecursiveReadOnly: m.GetReadonly() && private && !o.GetNonrecursive() && !o.GetReadonlynonrecursive() || o.GetReadonlyforcerecursive(),
	}.Mount()
}

// MissingSources are the directories of the node that the task wants made where they are
// missing.
func (a Task) MissingSources() (dirs []string) {
	for _, m := range a.mounts {
		if m.GetType() == swarmv1.Mount_BIND && m.GetBindOptions().GetCreatemountpoint() {
			dirs = append(dirs, path.Clean(m.GetSource()))
		}
	}
	return dirs
}

// dockerSocket is the name of dockerd's socket.
const dockerSocket = "docker.sock"

// WithoutDocker refuses a mount of dockerd's socket on a node that has none, and names a placement
// constraint. A new directory of its name would be useless for the task.
func WithoutDocker(a Task) error {
	for _, m := range a.mounts {
		if m.GetType() != swarmv1.Mount_BIND || path.Base(path.Clean(m.GetSource())) != dockerSocket {
			continue
		}
		if _, err := os.Lstat(path.Clean(m.GetSource())); errors.Is(err, fs.ErrNotExist) {
			return invalid.Errorf("mount of %s: this node has no dockerd; keep the service off by --constraint-add 'node.id!=%s', or by a label of face.swarm.labels for all such nodes: --constraint-add 'engine.labels.NAME!=VALUE'", m.GetSource(), a.Node.ID)
		}
	}
	return nil
}

// ownMounts are the task's but for volumes, which the engine mounts.
func (a Task) ownMounts() ([]specs.Mount, error) {
	var list []specs.Mount
	for _, m := range a.mounts {
		switch m.GetType() {
		case swarmv1.Mount_BIND:
			b, err := bind(m)
			if err != nil {
				return nil, err
			}
			list = append(list, b)
		case swarmv1.Mount_TMPFS:
			options, err := tmpfsOptions(m)
			if err != nil {
				return nil, err
			}
			list = append(list, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: path.Clean(m.GetTarget()), Options: options})
		case swarmv1.Mount_VOLUME, swarmv1.Mount_NPIPE, swarmv1.Mount_CLUSTER:
		}
	}
	return list, nil
}

// tmpfsOptions are the mount options of a tmpfs: nosuid, nodev and noexec unless its own say
// otherwise.
func tmpfsOptions(m *swarmv1.Mount) ([]string, error) {
	o := m.GetTmpfsOptions()
	options := []string{"nosuid", "nodev", "noexec"}
	if m.GetReadonly() {
		options = append(options, "ro")
	}
	if o.GetSizeBytes() < 0 {
		return nil, invalid.Errorf("a tmpfs of %d bytes", o.GetSizeBytes())
	}
	if o.GetSizeBytes() > 0 {
		options = append(options, fmt.Sprintf("size=%d", o.GetSizeBytes()))
	}
	mode := o.GetMode()
	if mode == 0 {
		mode = 0o1777
	}
	if mode > 0o7777 {
		return nil, invalid.Errorf("a tmpfs of mode %o", mode)
	}
	options = append(options, fmt.Sprintf("mode=%o", mode))
	words, err := tmpfsWords(o.GetOptions())
	return append(options, words...), err
}

// maxTmpfsOptions bounds the text of a tmpfs' options, in bytes.
const maxTmpfsOptions = 4000

// tmpfsWords reads the options of a tmpfs. Docker's clients write them as JSON, a list with a
// list of a name and perhaps a value for each; as mount(8) has them they are taken too.
func tmpfsWords(text string) (words []string, err error) {
	if len(text) > maxTmpfsOptions {
		return nil, invalid.Errorf("tmpfs options of %d bytes", len(text))
	}
	var pairs [][]string
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "[") || trimmed == "null" {
		if err := json.Unmarshal([]byte(text), &pairs); err != nil {
			return nil, invalid.Errorf("tmpfs options %q: %v", text, err)
		}
	} else if text != "" {
		for w := range strings.SplitSeq(text, ",") {
			pairs = append(pairs, strings.SplitN(w, "=", 2))
		}
	}
	for _, p := range pairs {
		if len(p) < 1 || len(p) > 2 || !ocispec.TmpfsOption(strings.Join(p, "=")) {
			return nil, invalid.Errorf("tmpfs option %q", strings.Join(p, "="))
		}
		words = append(words, strings.Join(p, "="))
	}
	return words, nil
}

// volumes are the task's named volumes, and those without a name, which are its own.
func (a Task) volumes() (list []core.VolumeMount) {
	for _, m := range a.mounts {
		if m.GetType() != swarmv1.Mount_VOLUME {
			continue
		}
		o := m.GetVolumeOptions()
		v := core.VolumeMount{
			Name: a.volumeName(m), Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadonly(), NoCopy: o.GetNocopy(), Labels: o.GetLabels(),
			SubPath: o.GetSubpath(), Options: o.GetDriverConfig().GetOptions(),
		}
		list = append(list, v)
	}
	return list
}

// volumeName is that of the volume of a mount: its own, or that of one that goes with the task.
func (a Task) volumeName(m *swarmv1.Mount) string {
	if m.GetSource() == "" {
		return ownVolume(a.Swarm.GetId(), path.Clean(m.GetTarget()))
	}
	return m.GetSource()
}

// DriverVolumes are the names of the task's volumes with a driver, with options or without.
func (a Task) DriverVolumes() (names []string) {
	for _, m := range a.mounts {
		if m.GetType() == swarmv1.Mount_VOLUME && m.GetVolumeOptions().GetDriverConfig() != nil {
			names = append(names, a.volumeName(m))
		}
	}
	return names
}

// OwnVolume reports whether a volume is one that goes with its task.
func OwnVolume(name string) bool {
	task, target, ok := strings.Cut(strings.TrimPrefix(name, "task-"), "-")
	return ok && strings.HasPrefix(name, "task-") && len(task) == 16 && len(target) == 16 && core.IsHex(task+target)
}

// ownVolume names a volume that goes with its task.
func ownVolume(task, target string) string {
	return ownPrefix(task) + digest.FromString(target).Encoded()[:16]
}

func ownPrefix(task string) string { return "task-" + digest.FromString(task).Encoded()[:16] + "-" }

// OwnVolumeOf reports whether a volume is one that goes with the given task.
func OwnVolumeOf(task, name string) bool { return strings.HasPrefix(name, ownPrefix(task)) }
