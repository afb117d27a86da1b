package translate

import (
	"context"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// confine puts the request's system call filter, profile and hidden paths into s. The capabilities
// must be set.
func confine(s *specs.Spec, req *longshorev1.CreateRequest) error {
	switch {
	case req.GetSeccompUnconfined() && len(req.GetSeccomp()) > 0:
		return invalid.Errorf("a seccomp filter cannot be combined with seccomp unconfined")
	case req.GetPrivileged():
		if err := ocispec.AllPrivileges(s); err != nil {
			return err
		}
	}
	if req.GetApparmor() != "" || !req.GetPrivileged() {
		ocispec.AppArmor(s, req.GetApparmor())
	}
	if req.GetUnmasked() {
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	}
	switch {
	case len(req.GetSeccomp()) > 0:
		return ocispec.LoadSeccomp(s, req.GetSeccomp())
	case req.GetSeccompUnconfined() || req.GetPrivileged():
		return nil
	}
	return ocispec.DefaultSeccomp(s)
}

// addDevices puts the request's devices of the host into s. A policy adds those of the Container Device
// Interface (cdiNames).
func addDevices(s *specs.Spec, req *longshorev1.CreateRequest) error {
	for _, name := range req.GetDevices() {
		if !strings.HasPrefix(name, "/") {
			continue
		}
		d, err := ocispec.ParseDevice(name)
		if err != nil {
			return err
		}
		devices, rules, err := ocispec.HostDevice(d)
		if err != nil {
			return err
		}
		ocispec.AddDevice(s, devices, rules)
	}
	return nil
}

// cdiNames returns the request's devices that have names of the Container Device Interface.
func cdiNames(req *longshorev1.CreateRequest) ([]string, error) {
	names := slices.DeleteFunc(slices.Clone(req.GetDevices()), func(n string) bool { return strings.HasPrefix(n, "/") })
	return names, ocispec.CheckCDI(names)
}

// memoryMounts returns the request's tmpfs mounts, and /dev/shm if the request sets its size.
func memoryMounts(req *longshorev1.CreateRequest) (list []specs.Mount, err error) {
	for _, t := range req.GetTmpfs() {
		options := []string{"nosuid", "nodev", "noexec", "mode=1777"}
		for _, o := range t.GetOptions() {
			if !ocispec.TmpfsOption(o) {
				return nil, invalid.Errorf("tmpfs %s: option %q is not supported", t.GetTarget(), o)
			}
			options = append(options, o)
		}
		list = append(list, specs.Mount{Destination: path.Clean(t.GetTarget()), Type: "tmpfs", Source: "tmpfs", Options: options})
	}
	if n := bytesOf(req.GetShmBytes()); n > 0 {
		if _, joins := JoinedContainer(req.GetIpc()); joins || req.GetIpc() == "host" {
			return nil, invalid.Errorf("a size of /dev/shm cannot be combined with the ipc namespace of the host or of another container")
		}
		list = append(list, specs.Mount{
			Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=" + strconv.FormatInt(n, 10)},
		})
	}
	return list, nil
}

// specFunc returns the function that makes the container's spec, for systemd with further file systems in memory. It
// checks everything that does not need the container's root before it returns.
func specFunc(req *longshorev1.CreateRequest, systemd bool, memory []specs.Mount, images []core.Image) (core.SpecFunc, error) {
	base := ocispec.New()
	caps, err := ocispec.Capabilities(ocispec.DefaultCapabilities(), req.GetCapAdd(), req.GetCapDrop())
	if err != nil {
		return nil, err
	}
	base.Process.Terminal, base.Process.NoNewPrivileges = req.GetTty(), !req.GetNewPrivileges()
	base.Process.ConsoleSize = consoleSize(req.GetTty(), req.GetSize())
	base.Process.Capabilities = ocispec.CapabilitySets(caps)
	if err := limits(base, req); err != nil {
		return nil, err
	}
	if err := mounts(base, req, memory); err != nil {
		return nil, err
	}
	base.Linux.Sysctl, base.Annotations = req.GetSysctls(), req.GetAnnotations()
	if err := confine(base, req); err != nil {
		return nil, err
	}
	if err := addDevices(base, req); err != nil {
		return nil, err
	}
	return func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		var env []string
		if systemd {
			env = systemdEnv(r.Image, r.ID)
		}
		s, err := finishSpec(req, env, base, r)
		if err != nil || len(req.GetImages()) == 0 {
			return s, nil, err
		}
		binds, err := imageBinds(req, images, r.Images, r.FS)
		if err == nil {
			ocispec.AddBeforeInner(s, binds)
		}
		return s, nil, err
	}, nil
}

// finishSpec adds the values that depend on the root and the image, and the variables env, which the request may replace.
func finishSpec(req *longshorev1.CreateRequest, env []string, s *specs.Spec, r core.Rootfs) (*specs.Spec, error) {
	_, err := ocispec.Head{
		User: func(root *os.Root, image string) (ocispec.User, error) { return userOf(req, root, image) },
		Args: func(img *imagespec.ImageConfig) ([]string, error) {
			return ocispec.Command(img, entrypoint(req), req.GetCommand())
		},
		WorkDir: req.GetWorkdir(), Hostname: r.Sandbox.Config.Hostname, Env: [][]string{env, req.GetEnv()},
	}.Finish(s, r)
	return s, err
}

// entrypoint returns nil when the request keeps the image's entry point.
func entrypoint(req *longshorev1.CreateRequest) []string {
	switch {
	case req.GetEntrypoint() != "":
		return []string{req.GetEntrypoint()}
	case req.GetClearEntrypoint():
		return []string{}
	}
	return nil
}

// userOf returns the program's user, with the request's additional groups.
func userOf(req *longshorev1.CreateRequest, root *os.Root, image string) (ocispec.User, error) {
	user, err := ocispec.UserNamed(req.GetUser())(root, image)
	if err != nil || len(req.GetGroups()) == 0 {
		return user, err
	}
	files, err := ocispec.ReadUserFiles(root)
	if err != nil {
		return user, err
	}
	for _, g := range req.GetGroups() {
		found, err := files.LookUp("0:" + g)
		if err != nil {
			return user, err
		}
		if gid := found.GID; !slices.Contains(user.AdditionalGids, gid) {
			user.AdditionalGids = append(user.AdditionalGids, gid)
		}
	}
	return user, nil
}

// mounts adds the request's binds and file systems in memory, and those of memory, to the mounts of every container. The
// engine adds volumes.
func mounts(s *specs.Spec, req *longshorev1.CreateRequest, memory []specs.Mount) error {
	list, err := memoryMounts(req)
	if err != nil {
		return err
	}
	list = append(list, memory...)
	for _, m := range req.GetMounts() {
		if !path.IsAbs(m.GetSource()) {
			continue
		}
		b, err := ocispec.Bind{Source: path.Clean(m.GetSource()), Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadOnly(), Propagation: m.GetPropagation(), Relabel: m.GetRelabel()}.Mount()
		if err != nil {
			return err
		}
		list = append(list, b)
	}
	ocispec.AddMounts(s, list)
	return nil
}

// consoleSize returns the size that the runtime sets before the program starts; nil when there is
// none.
func consoleSize(tty bool, requested *longshorev1.Size) *specs.Box {
	if size := Size(requested); tty && size.Rows > 0 && size.Cols > 0 {
		return &specs.Box{Height: uint(size.Rows), Width: uint(size.Cols)}
	}
	return nil
}
