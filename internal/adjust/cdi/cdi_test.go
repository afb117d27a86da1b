package cdi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/adjust"
	"github.com/longshore/longshore/internal/adjust/cdi"
	"github.com/longshore/longshore/internal/core"
)

const vendorFile = `cdiVersion: "0.5.0"
kind: "example.com/net"
devices:
- name: one
  containerEdits:
    env: ["ONE=yes"]
    deviceNodes:
    - {path: /dev/one, hostPath: /dev/null, permissions: rw}
    mounts:
    - {hostPath: /etc, containerPath: /vendor, options: [ro, bind]}
containerEdits:
  env: ["VENDOR=example"]
`

func TestCDIDevices(t *testing.T) {
	dir := t.TempDir()
	devices, err := cdi.New([]string{filepath.Join(dir, "missing"), dir})
	if err != nil {
		t.Fatal(err)
	}
	inject := func(names ...string) (*specs.Spec, error) {
		s := &specs.Spec{Process: &specs.Process{Env: []string{"A=b"}}, Linux: &specs.Linux{}}
		err := adjust.Policies(adjust.Options{CDI: devices})[0].AdjustContainer(t.Context(), &core.Sandbox{}, &core.Container{Config: core.ContainerConfig{CDI: names}}, s)
		return s, err
	}
	if _, err := inject("example.com/net=one"); !errdefs.IsNotFound(err) {
		t.Fatalf("before the vendor's file is there: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "example.yaml"), []byte(vendorFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := inject("example.com/net=one")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Process.Env, []string{"A=b", "VENDOR=example", "ONE=yes"}) {
		t.Errorf("env %q", s.Process.Env)
	}
	if d := s.Linux.Devices; len(d) != 1 || d[0].Path != "/dev/one" || d[0].Major != 1 || d[0].Minor != 3 {
		t.Errorf("devices %+v", d)
	}
	if r := s.Linux.Resources.Devices; len(r) != 1 || !r[0].Allow || r[0].Access != "rw" {
		t.Errorf("rules %+v", r)
	}
	if m := s.Mounts; len(m) != 1 || m[0].Destination != "/vendor" || m[0].Source != "/etc" {
		t.Errorf("mounts %+v", m)
	}
	if s, err := inject(); err != nil || len(s.Linux.Devices) != 0 || len(s.Process.Env) != 1 {
		t.Errorf("nothing asked: %v, %+v", err, s)
	}
	if _, err := inject("example.com/net=two"); !errdefs.IsNotFound(err) {
		t.Errorf("a device the vendor does not have: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte("cdiVersion: 0.5.0\nkind: other.com/x\ndevices: [{}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := inject("other.com/x=y"); err == nil || !strings.Contains(err.Error(), "malformed files") {
		t.Errorf("a malformed file is not named: %v", err)
	}
	if _, err := cdi.New([]string{"relative"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("relative directory: %v", err)
	}
}
