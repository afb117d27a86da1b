package translate

import (
	"crypto/rand"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/restart"
)

// Container returns the configuration of the container for a request, without its Data and its sinks. It checks everything
// that does not need the container's root.
// images are those that the request mounts, in its order.
func Container(req *longshorev1.CreateRequest, key core.Key, img core.Image, images []core.Image) (core.ContainerConfig, error) {
	cdi, err := cdiNames(req)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	volumes := volumeMounts(append(slices.Clone(req.GetMounts()), declared(img, req)...))
	systemd, err := isSystemd(req, img)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	var memory []specs.Mount
	if systemd {
		memory = systemdMounts(targets(req, volumes))
	}
	mounted, err := imageMounts(req, images)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	spec, err := specFunc(req, systemd, memory, images)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	policy, err := restart.Parse(req.GetRestart())
	if err != nil {
		return core.ContainerConfig{}, err
	}
	cfg := core.ContainerConfig{
		Restart: policy,
		Key:     key, Labels: req.GetLabels(),
		Root:    core.Root{Image: img.ID, ReadOnly: req.GetReadOnly()},
		Volumes: volumes,
		Images:  mounted,
		CDI:     cdi,
		Disk:    int64(req.GetDiskBytes()),
		Spec:    spec,
		IO:      core.IO{TTY: req.GetTty(), Size: Size(req.GetSize()), Stdin: stdinMode(req), Hold: req.GetHold()},
		Stop:    stopConfig(req), Init: req.GetInit(), Labelled: true,
	}
	if systemd {
		prepareSystemd(&cfg, img)
	}
	doc, asked := req.GetLabels()[core.GrantAnnotation]
	ocispec.Granted{
		Document: doc, Asked: asked, Runtime: req.GetRuntime(), Image: &img, Identity: core.Identity{Pod: string(key), Container: string(key), Image: req.GetImage()},
	}.Apply(&cfg)
	return cfg, nil
}

// stdinMode returns the behaviour of the container's standard input.
func stdinMode(req *longshorev1.CreateRequest) core.StdinMode {
	switch {
	case req.GetStdin() && req.GetStdinOnce():
		return core.StdinOnce
	case req.GetStdin():
		return core.StdinOpen
	}
	return core.StdinClosed
}

// stopConfig returns the stop signal and the grace period of a container.
func stopConfig(req *longshorev1.CreateRequest) core.Stop {
	st := core.Stop{Signal: req.GetStopSignal(), Grace: defaultGrace}
	if g := req.GetStopGrace(); g != nil {
		st.Grace = g.AsDuration()
	}
	return st
}

// volumeMounts returns the mounts of volumes. A volume without a name gets a random one.
func volumeMounts(mounts []*longshorev1.Mount) []core.VolumeMount {
	var out []core.VolumeMount
	for _, m := range mounts {
		if !path.IsAbs(m.GetSource()) {
			v := core.VolumeMount{Name: m.GetSource(), Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadOnly(), SubPath: m.GetSubPath(), NoCopy: m.GetNoCopy(), Private: m.GetRelabel() == ocispec.RelabelPrivate}
			if m.GetAnonymous() {
				var r [32]byte
				_, _ = rand.Read(r[:]) // never fails
				v.Name, v.Labels = hex.EncodeToString(r[:]), map[string]string{core.AnonymousLabel: "true"}
			}
			out = append(out, v)
		}
	}
	return out
}

// declared returns the volumes that the image declares, except where the request mounts something.
func declared(img core.Image, req *longshorev1.CreateRequest) (list []*longshorev1.Mount) {
	taken := map[string]bool{}
	for _, m := range req.GetMounts() {
		taken[path.Clean(m.GetTarget())] = true
	}
	for _, t := range req.GetTmpfs() {
		taken[path.Clean(t.GetTarget())] = true
	}
	for _, m := range req.GetImages() {
		taken[path.Clean(m.GetTarget())] = true
	}
	for _, target := range ocispec.Volumes(&img.Config.Config) {
		if !taken[target] {
			list = append(list, &longshorev1.Mount{Target: target, Anonymous: true})
		}
	}
	return list
}

// MadeUpName returns a name for a container without one: the image's last name component and a few random digits.
func MadeUpName(image string) core.Key {
	base, _, _ := strings.Cut(path.Base(image), "@")
	base, _, _ = strings.Cut(base, ":")
	var r [4]byte
	_, _ = rand.Read(r[:]) // never fails
	base = regexp.MustCompile(`[^a-zA-Z0-9_.-]`).ReplaceAllString(base, "")
	base = strings.TrimLeft(base, "_.-")
	if base == "" {
		base = "container"
	}
	return core.Key(base + "-" + hex.EncodeToString(r[:]))
}

// Hostname makes a valid host name from a container's name.
func Hostname(key core.Key) string {
	h := strings.ReplaceAll(string(key), "_", "-")
	if len(h) > 63 {
		h = h[:63]
	}
	return strings.TrimRight(h, ".-")
}

// defaultGrace is the time between the stop signal and SIGKILL for our containers.
const defaultGrace = 10 * time.Second

// Grace returns the grace period of a request. nil is the container's own one.
func Grace(d *durationpb.Duration) (*time.Duration, error) {
	if d == nil {
		return nil, nil //nolint:nilnil // absent is a value here
	}
	if err := d.CheckValid(); err != nil {
		return nil, invalid.Errorf("grace: %v", err)
	}
	g := d.AsDuration()
	if g < 0 {
		return nil, invalid.Errorf("grace %v is negative", g)
	}
	return &g, nil
}

// Size converts the size of a terminal.
func Size(s *longshorev1.Size) core.Size {
	return core.Size{Cols: uint16(min(s.GetCols(), 0xffff)), Rows: uint16(min(s.GetRows(), 0xffff))}
}
