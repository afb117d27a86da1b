package cri

import (
	"context"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// containerAsk is a request for a container with everything it names looked up.
type containerAsk struct {
	face    Config
	req     *v1.CreateContainerRequest
	sandbox *core.Sandbox
	pod     *v1.RunPodSandboxRequest // the sandbox's request
	node    string                   // the node's host name
	image   core.Image
	target  core.ID // the container with the pid namespace to join, or ""
	as      variant
	program string // of the variant's programs, instead of an image; or ""
	runtime core.RuntimeFeatures
	// writable says why no container here can have writable cgroups, or is nil.
	writable error
	seccomp  []byte // a profile from a file, or nil
	pulled   []byte // a profile from a registry, or nil
	// volumes are the images that mounts name, by the mount's target.
	volumes map[string]core.Image
	devices []specs.LinuxDevice
	rules   []specs.LinuxDeviceCgroup // that open the devices
}

// config returns the requested container. Only the spec has to wait until the root exists.
func (a containerAsk) config() (core.ContainerConfig, error) {
	cfg, sc := a.req.GetConfig(), a.req.GetConfig().GetLinux().GetSecurityContext()
	var out core.ContainerConfig
	if err := fitNamespaces(cfg, a.sandbox); err != nil {
		return out, err
	}
	if err := checkUser(sc); err != nil {
		return out, err
	}
	dir, err := a.as.logDirectory(a.logDirectory())
	if err != nil {
		return out, err
	}
	log, err := logPath(dir, cfg.GetLogPath())
	if err != nil {
		return out, err
	}
	signal, err := convert.SignalName(cfg.GetStopSignal())
	if err != nil {
		return out, err
	}
	out = core.ContainerConfig{
		Key: convert.ContainerKey(cfg.GetMetadata(), a.sandbox.ID), Labels: maps.Clone(cfg.GetLabels()), Sandbox: a.sandbox.ID,
		Root: core.Root{Image: a.image.ID, ReadOnly: sc.GetReadonlyRootfs()},
		IO:   containerIO(a.face, cfg, dir, log), Stop: core.Stop{Signal: signal},
	}
	if err := convert.CheckKey(out.Key); err != nil {
		return out, err
	}
	if out.LogDriver, err = convert.LogDriver(a.pod.GetConfig(), cfg); err != nil {
		return out, err
	}
	if wish, ok := a.pod.GetConfig().GetAnnotations()[DiskAnnotation]; ok {
		if out.Disk, err = core.DiskLimit(wish); err != nil {
			return out, invalid.Errorf("annotation %s: %v", DiskAnnotation, err)
		}
	}
	if err := a.cgroups(&out); err != nil {
		return out, err
	}
	if err := a.labelRoot(&out); err != nil {
		return out, err
	}
	a.as.adapt(&out, a.program)
	out.Images = a.imageMounts()
	if out.CDI, err = cdiDevices(cfg); err != nil {
		return out, err
	}
	if a.target != "" {
		out.Join = []core.Join{{Namespace: specs.PIDNamespace, Container: a.target}}
	}
	rec, err := a.record()
	if err != nil {
		return out, err
	}
	a.nameVolumes(rec)
	if out.Data, err = rec.encode(); err != nil {
		return out, err
	}
	// Everything that does not need the root fails now, before one is made.
	base, err := a.base()
	if err != nil {
		return out, err
	}
	if sc.GetPrivileged() {
		out.Users.Host = "it is privileged"
	}
	out.Users.Caps = base.Process.Capabilities.Bounding
	for _, m := range cfg.GetMounts() {
		if m.GetImage().GetImage() == "" && len(m.GetUidMappings()) == 0 {
			out.Users.Paths = append(out.Users.Paths, m.GetHostPath())
		}
	}
	out.Spec = func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) { return a.finish(base, rec, r) }
	a.granted().Apply(&out)
	return out, nil
}

// cdiAnnotation is the prefix of annotations with names of CDI devices, separated by commas. The CDI
// specification defines them for clients without the field of the protocol.
const cdiAnnotation = "cdi.k8s.io/"

// cdiDevices returns the names of the CDI devices in the field and in annotations of a container, each
// once. InvalidArgument for an annotation with something else.
func cdiDevices(cfg *v1.ContainerConfig) (names []string, err error) {
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, d := range cfg.GetCDIDevices() {
		add(d.GetName())
	}
	for _, key := range slices.Sorted(maps.Keys(cfg.GetAnnotations())) {
		if !strings.HasPrefix(key, cdiAnnotation) {
			continue
		}
		for name := range strings.SplitSeq(cfg.GetAnnotations()[key], ",") {
			kind, device, ok := strings.Cut(name, "=")
			if vendor, class, both := strings.Cut(kind, "/"); !ok || !both || vendor == "" || class == "" || device == "" {
				return nil, invalid.Errorf("annotation %s: %q is not the name of a CDI device, VENDOR/CLASS=NAME", key, name)
			}
			add(name)
		}
	}
	return names, nil
}

func (a containerAsk) logDirectory() string {
	if d := a.req.GetSandboxConfig().GetLogDirectory(); d != "" {
		return d
	}
	return a.pod.GetConfig().GetLogDirectory()
}

// record has the image's name for users: the requested name if it is one of the image's, else the
// image's first.
func (a containerAsk) record() (containerRecord, error) {
	rec, err := newContainerRecord(a.req)
	if err != nil {
		return rec, invalid.Errorf("container config: %v", err)
	}
	spec := proto.CloneOf(rec.Config.GetImage())
	names := slices.Concat(a.image.Names, a.image.Digests)
	asked := []string{spec.GetUserSpecifiedImage(), spec.GetImage()}
	if i := slices.IndexFunc(asked, func(s string) bool { return slices.Contains(names, s) }); i >= 0 {
		spec.Image = asked[i]
	} else if len(names) > 0 {
		spec.Image = names[0]
	}
	rec.Found = &v1.ContainerStatus{Image: spec, ImageId: string(a.image.ID), ImageRef: string(a.image.ID)}
	if len(a.image.Digests) > 0 {
		rec.Found.ImageRef = a.image.Digests[0]
	}
	if r := a.req.GetConfig().GetLinux().GetResources(); r != nil {
		rec.Found.Resources = &v1.ContainerResources{Linux: proto.CloneOf(r)}
	}
	return rec, nil
}

// base is the spec as far as the request alone decides it.
func (a containerAsk) base() (*specs.Spec, error) {
	cfg := a.req.GetConfig()
	sc := cfg.GetLinux().GetSecurityContext()
	caps, err := capabilities(sc)
	if err != nil {
		return nil, err
	}
	limits, err := convert.Resources(cfg.GetLinux().GetResources())
	if err != nil {
		return nil, err
	}
	score, err := convert.OOMScore(cfg.GetLinux().GetResources())
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Process: &specs.Process{
			Terminal: cfg.GetTty(), Capabilities: caps, NoNewPrivileges: sc.GetNoNewPrivs(), OOMScoreAdj: score,
			ApparmorProfile: apparmor(sc),
		},
		Linux:       &specs.Linux{Resources: limits},
		Annotations: annotations(a.req, a.sandbox),
	}
	ocispec.SetLevels(s, levels(a.req))
	if err := a.mounts(s); err != nil {
		return nil, err
	}
	a.paths(s)
	limits.Devices = ocispec.DefaultDeviceRules()
	ocispec.AddDevice(s, a.devices, a.rules)
	if err := a.label(s); err != nil {
		return nil, err
	}
	if err := a.filter(s); err != nil {
		return nil, err
	}
	return s, nil
}

// finish adds the values that depend on root and image: user, command, environment and directory.
// It completes the record.
func (a containerAsk) finish(base *specs.Spec, rec containerRecord, r core.Rootfs) (*specs.Spec, []byte, error) {
	cfg, sc := a.req.GetConfig(), a.req.GetConfig().GetLinux().GetSecurityContext()
	asked, err := environment(cfg)
	if err != nil {
		return nil, nil, err
	}
	volumes := ocispec.ImageVolumes(base, r) // before they are mounts themselves
	who, err := ocispec.Head{
		User: func(root *os.Root, image string) (ocispec.User, error) {
			files, err := ocispec.ReadUserFiles(root)
			if err != nil {
				return ocispec.User{}, err
			}
			return lookUp(sc, userSpec(sc, image), files)
		},
		Args: func(img *imagespec.ImageConfig) ([]string, error) {
			if a.program != "" {
				return []string{"/" + a.program}, nil
			}
			return ocispec.Command(img, entrypoint(cfg), cfg.GetArgs())
		},
		WorkDir: cfg.GetWorkingDir(), Hostname: a.hostname(), Env: [][]string{asked},
	}.Finish(base, r)
	if err != nil {
		return nil, nil, err
	}
	rec.Found.User = statusUser(who.User)
	for _, v := range volumes {
		rec.Found.Mounts = append(rec.Found.Mounts, &v1.Mount{ContainerPath: v.Destination, HostPath: v.Source})
	}
	data, err := rec.encode()
	return base, data, err
}

// hostname returns the hostname of the container's uname.
func (a containerAsk) hostname() string {
	switch c := a.sandbox.Config; {
	case c.Hostname != "":
		return c.Hostname
	case c.Namespaces.UTS.Mode == core.Host:
		return a.node
	}
	return a.sandbox.ID.Short()
}

// entrypoint: no command in the request leaves the image's; there is no way to
// clear it.
func entrypoint(cfg *v1.ContainerConfig) []string {
	if len(cfg.GetCommand()) == 0 {
		return nil
	}
	return cfg.GetCommand()
}

func nul(s string) bool { return strings.Contains(s, "\x00") }

func environment(cfg *v1.ContainerConfig) (env []string, err error) {
	for _, e := range cfg.GetEnvs() {
		k, v := e.GetKey(), string(e.GetValue())
		if k == "" || strings.Contains(k, "=") || nul(k+v) {
			return nil, invalid.Errorf("container %s: environment variable %q", cfg.GetMetadata().GetName(), k)
		}
		env = append(env, k+"="+v)
	}
	return env, nil
}

// annotations are those that runtimes other than runc use to distinguish pods from containers.
func annotations(req *v1.CreateContainerRequest, sb *core.Sandbox) map[string]string {
	m := convert.SandboxMetadata(sb.Key)
	return map[string]string{
		"io.kubernetes.cri.container-type":    "container",
		"io.kubernetes.cri.container-name":    req.GetConfig().GetMetadata().GetName(),
		"io.kubernetes.cri.image-name":        req.GetConfig().GetImage().GetImage(),
		"io.kubernetes.cri.sandbox-id":        string(sb.ID),
		"io.kubernetes.cri.sandbox-name":      m.GetName(),
		"io.kubernetes.cri.sandbox-namespace": m.GetNamespace(),
		"io.kubernetes.cri.sandbox-uid":       m.GetUid(),
	}
}

// mounts are those every container has, then the request's, parents before
// children.
func (a containerAsk) mounts(s *specs.Spec) error {
	s.Mounts = ocispec.DefaultMounts(a.req.GetConfig().GetLinux().GetSecurityContext().GetPrivileged())
	if sb := a.sandbox.Config; sb.Namespaces.Net.Mode == core.Host && len(sb.UIDs) > 0 {
		ocispec.ShowNodeSys(s)
	}
	a.writeCgroups(s)
	var asked []specs.Mount
	for _, m := range a.req.GetConfig().GetMounts() {
		mount, err := a.mount(m)
		if err != nil {
			return err
		}
		asked = append(asked, mount)
	}
	ocispec.AddMounts(s, asked)
	return nil
}

func (a containerAsk) mount(m *v1.Mount) (specs.Mount, error) {
	target := m.GetContainerPath()
	switch {
	case m.GetImage().GetImage() != "":
		return a.imageMount(m)
	case target == "" || nul(target+m.GetHostPath()):
		return specs.Mount{}, invalid.Errorf("mount of %s at %q", m.GetHostPath(), target)
	case m.GetRecursiveReadOnly() && !m.GetReadonly():
		return specs.Mount{}, invalid.Errorf("mount %s: recursive_read_only without readonly", target)
	case m.GetRecursiveReadOnly() && m.GetPropagation() != v1.MountPropagation_PROPAGATION_PRIVATE:
		return specs.Mount{}, invalid.Errorf("mount %s: recursive_read_only with propagation %s", target, m.GetPropagation())
	case m.GetRecursiveReadOnly() && !a.runtime.RecursiveReadOnly:
		return specs.Mount{}, invalid.Errorf("mount %s: the runtime has no recursive read-only mounts", target)
	case len(m.GetUidMappings())+len(m.GetGidMappings()) > 0 && !a.runtime.IDMappedMounts:
		return specs.Mount{}, invalid.Errorf("mount %s: the runtime has no id-mapped mounts", target)
	}
	if !path.IsAbs(target) {
		target = "/" + target
	}
	source, below, err := a.as.source(m)
	if err != nil {
		return specs.Mount{}, err
	}
	b := ocispec.Bind{
		Source: source, Below: below, Target: path.Clean(target), ReadOnly: m.GetReadonly(), RecursiveReadOnly: m.GetRecursiveReadOnly(),
		UIDs: idMappings(m.GetUidMappings()), GIDs: idMappings(m.GetGidMappings()),
	}
	switch m.GetPropagation() {
	case v1.MountPropagation_PROPAGATION_PRIVATE:
	case v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		b.Propagation = "rslave"
	case v1.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		b.Propagation = "rshared"
	default:
		return specs.Mount{}, invalid.Errorf("mount %s: propagation %d", target, m.GetPropagation())
	}
	out, err := b.Mount()
	if err != nil {
		return out, err
	}
	return withOptions(out, m)
}

// withOptions adds the mount options that a request may name.
func withOptions(out specs.Mount, m *v1.Mount) (specs.Mount, error) {
	for _, o := range m.GetMountOptions() {
		switch o {
		case "noexec", "nodev", "nosuid", "noatime", "nodiratime", "relatime", "nosymfollow":
			out.Options = append(out.Options, o)
		default:
			return specs.Mount{}, invalid.Errorf("mount %s: option %q", m.GetContainerPath(), o)
		}
	}
	return out, nil
}
