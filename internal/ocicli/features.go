package ocicli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"github.com/longshore/longshore/internal/ocispec"
)

func featuresCmd(_ context.Context, a *app, args []string) error {
	if err := a.flags("features", "").Parse(args); err != nil {
		return usage(err)
	}
	yes, no := true, false
	archs := map[string][]string{"amd64": {string(specs.ArchX86_64), string(specs.ArchX86)}, "arm64": {string(specs.ArchAARCH64), string(specs.ArchARM)}}
	return a.printJSON(features.Features{
		OCIVersionMin: "1.0.0", OCIVersionMax: specs.Version,
		Hooks:        hookNames(),
		MountOptions: ocispec.MountOptionNames(),
		Linux: &features.Linux{
			Namespaces:   namespaceNames(),
			Capabilities: ocispec.AllCapabilities(),
			Cgroup:       &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &no, Rdma: &yes},
			Seccomp: &features.Seccomp{
				Enabled: &yes,
				Actions: []string{
					string(specs.ActAllow), string(specs.ActErrno), string(specs.ActKill), string(specs.ActKillProcess), string(specs.ActKillThread),
					string(specs.ActLog), string(specs.ActNotify), string(specs.ActTrace), string(specs.ActTrap),
				},
				Operators: []string{
					string(specs.OpEqualTo), string(specs.OpGreaterEqual), string(specs.OpGreaterThan), string(specs.OpLessEqual), string(specs.OpLessThan),
					string(specs.OpMaskedEqual), string(specs.OpNotEqual),
				},
				Archs: archs[runtime.GOARCH],
			},
			Apparmor:        &features.Apparmor{Enabled: &yes},
			Selinux:         &features.Selinux{Enabled: &yes},
			IntelRdt:        &features.IntelRdt{Enabled: &no},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &yes}},
			NetDevices:      &features.NetDevices{Enabled: &no},
		},
	})
}

// hookNames are the kinds of hooks, in the order of their execution.
func hookNames() []string {
	return []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
}

// namespaceNames are the kinds of namespaces that a container can have.
func namespaceNames() []string {
	return []string{
		string(specs.CgroupNamespace), string(specs.IPCNamespace), string(specs.MountNamespace), string(specs.NetworkNamespace),
		string(specs.PIDNamespace), string(specs.TimeNamespace), string(specs.UserNamespace), string(specs.UTSNamespace),
	}
}

func specCmd(_ context.Context, a *app, args []string) error {
	f := a.flags("spec", "")
	bundle := f.String("bundle", "", "directory to write config.json in (default: the working directory)")
	f.StringVar(bundle, "b", "", "short for --bundle")
	if err := f.Parse(args); err != nil {
		return usage(err)
	}
	s := ocispec.New()
	s.Version = specs.Version
	s.Root = &specs.Root{Path: "rootfs", Readonly: true}
	s.Hostname = Name
	s.Process.Terminal = true
	s.Process.Args = []string{"sh"}
	s.Process.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"}
	for _, kind := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace,
	} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	path := filepath.Join(*bundle, configFile)
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s already exists: %w", path, errdefs.ErrAlreadyExists)
	}
	if err != nil {
		return err
	}
	_, err = out.Write(append(b, '\n'))
	return errors.Join(err, out.Close())
}
