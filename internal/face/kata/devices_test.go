package kata

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/guest"
)

func ruleText(r specs.LinuxDeviceCgroup) string {
	number := func(n *int64) string {
		if n == nil {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("%t %s %s:%s %s", r.Allow, r.Type, number(r.Major), number(r.Minor), r.Access)
}

func ruleTexts(list []specs.LinuxDeviceCgroup) (out []string) {
	for _, r := range list {
		out = append(out, ruleText(r))
	}
	return out
}

// TestDevicesOfAContainer: a container's devices have the machine's numbers, although the
// machine has those that the host has for others; its rules and its variables too.
func TestDevicesOfAContainer(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	had := make(chan []string, 1)
	r.node.Supervisor.Program("env", func(p *enginetest.Process) int {
		had <- p.Env
		return 0
	})
	r.machine.devices = map[string]guest.Found{
		"one":  {Node: &guest.Node{Type: "b", Major: 8, Minor: 16}},
		"two":  {Node: &guest.Node{Type: "b", Major: 8, Minor: 0}},
		"card": {Node: &guest.Node{Type: "c", Major: 240, Minor: 1}, Path: "/dev/vfio/7", PCI: map[string]string{"0000:00:01.0": "0000:00:02.0", "0000:00:02.0": "0000:00:01.0"}},
		"more": {PCI: map[string]string{"0000:3a:00.0": "0000:00:05.0"}},
		"odd":  {PCI: map[string]string{"0000:3a:00.0": "0000:00:06.0"}},
	}
	spec := func() *katav1.Spec {
		s := specOf(t, "cat")
		s.Process.Env = []string{
			"A=0000:00:01.0", "PCIDEVICE_X=0000:00:01.0,0000:00:02.0", `PCIDEVICE_X_INFO={"0000:00:01.0":{"peer":"0000:00:02.0"}}`, "PCIDEVICE_Y=0000:3a:00.0",
			"PCIDEVICE_Z=0000:00:01.0,0000:ff:00.0", "PCIDEVICE_Z_INFO=0000:00:01.0", "PCIDEVICE_W=eth0", "PCIDEVICE",
		}
		s.Linux.Devices = []*katav1.LinuxDevice{
			{Path: "/dev/a", Type: "b", Major: 8, Minor: 0}, {Path: "/dev/b", Type: "b", Major: 8, Minor: 16}, {Path: "/dev/vfio/99", Type: "c", Major: 250, Minor: 0}, {Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229},
		}
		s.Linux.Resources = &katav1.LinuxResources{Devices: []*katav1.LinuxDeviceCgroup{
			{Access: "rwm"}, {Allow: true, Type: "b", Major: 8, Minor: 0, Access: "r"}, {Allow: true, Type: "b", Major: 8, Minor: 16, Access: "w"}, {Allow: true, Type: "c", Major: 10, Minor: 229, Access: "rw"}, {Allow: true, Type: "c", Access: "m"},
		}}
		return s
	}
	devices := []*katav1.Device{
		{Type: "blk", Id: "one", ContainerPath: "/dev/a"}, {Type: "blk", Id: "two", ContainerPath: "/dev/b"}, {Type: "vfio-pci", Id: "card", ContainerPath: "/dev/vfio/99"}, {Type: "vfio-pci-gk", Id: "more", ContainerPath: "/dev/x"},
	}
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: spec(), Devices: devices}); err != nil {
		t.Fatal(err)
	}
	ct, err := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	got := r.node.Runtime.Spec(ct.ID)
	var nodes []string
	for _, d := range got.Linux.Devices {
		nodes = append(nodes, fmt.Sprintf("%s %s %d:%d", d.Path, d.Type, d.Major, d.Minor))
	}
	if want := []string{"/dev/a b 8:16", "/dev/b b 8:0", "/dev/vfio/7 c 240:1", "/dev/fuse c 10:229"}; !slices.Equal(nodes, want) {
		t.Errorf("the devices are %q, want %q", nodes, want)
	}
	want := []string{
		"false  *:* rwm", "true b 8:16 r", "true b 8:0 w", "true c 10:229 rw", "true c *:* m", "true b 8:16 rwm", "true b 8:0 rwm", "true c 240:1 rwm",
	}
	if rules := ruleTexts(got.Linux.Resources.Devices); !slices.Equal(rules, want) {
		t.Errorf("the rules are\n%s\nwant\n%s", strings.Join(rules, "\n"), strings.Join(want, "\n"))
	}
	variables := []string{
		"A=0000:00:01.0", "PCIDEVICE_X=0000:00:02.0,0000:00:01.0", `PCIDEVICE_X_INFO={"0000:00:02.0":{"peer":"0000:00:01.0"}}`, "PCIDEVICE_Y=0000:00:05.0",
		"PCIDEVICE_Z=0000:00:01.0,0000:ff:00.0", "PCIDEVICE_Z_INFO=0000:00:01.0", "PCIDEVICE_W=eth0", "PCIDEVICE",
		"HOME=/",
	}
	if !slices.Equal(got.Process.Env, variables) {
		t.Errorf("the variables are\n%s\nwant\n%s", strings.Join(got.Process.Env, "\n"), strings.Join(variables, "\n"))
	}
	if _, err := r.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: &katav1.Process{Args: []string{"env"}, Cwd: "/", User: &katav1.User{}, Env: []string{"PCIDEVICE_Y=0000:3a:00.0"}}}); err != nil {
		t.Fatal(err)
	}
	if got := <-had; !slices.Equal(got, []string{"PCIDEVICE_Y=0000:00:05.0", "HOME=/"}) {
		t.Errorf("an exec has %q", got)
	}
	for name, list := range map[string][]*katav1.Device{
		"no path":                     {{Type: "blk", Id: "one"}},
		"none in the machine":         {{Type: "blk", Id: "three", ContainerPath: "/dev/a"}},
		"none in the spec":            {{Type: "blk", Id: "one", ContainerPath: "/dev/c"}},
		"two at one path":             {{Type: "blk", Id: "one", ContainerPath: "/dev/a"}, {Type: "blk", Id: "two", ContainerPath: "/dev/a"}},
		"two addresses of one device": {{Type: "vfio-pci-gk", Id: "more", ContainerPath: "/dev/x"}, {Type: "vfio-pci-gk", Id: "odd", ContainerPath: "/dev/y"}},
	} {
		if got := code(r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c2", ExecId: "c2", OCI: spec(), Devices: list})); got != codes.Internal {
			t.Errorf("%s: %v", name, got)
		}
	}
	same := spec()
	same.Linux.Devices[1].Minor = 0
	if got := code(r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c2", ExecId: "c2", OCI: same, Devices: devices[:2]})); got != codes.Internal {
		t.Errorf("two devices with the host's same numbers: %v", got)
	}
}

// TestDevicesWithoutRules: a container may use its devices, unless its rules allow all.
func TestDevicesWithoutRules(t *testing.T) {
	l := &specs.Linux{}
	if err := setDevices(l, nil); err != nil || !slices.Equal(ruleTexts(l.Resources.Devices), []string{"false  *:* rwm"}) {
		t.Errorf("none: %v, %q", err, ruleTexts(l.Resources.Devices))
	}
	l.Resources.Devices = toResources(&katav1.LinuxResources{Devices: []*katav1.LinuxDeviceCgroup{{Allow: true, Type: "a", Access: "rwm"}}}).Devices
	if err := setDevices(l, nil); err != nil || !slices.Equal(ruleTexts(l.Resources.Devices), []string{"true a *:* rwm"}) {
		t.Errorf("all: %v, %q", err, ruleTexts(l.Resources.Devices))
	}
}

// FuzzPCIVariables: any environment keeps its length and its names.
func FuzzPCIVariables(f *testing.F) {
	f.Add("PCIDEVICE_X=0000:00:01.0", "PCIDEVICE_X_INFO=0000:00:01.0", "0000:00:01.0", "0000:00:02.0")
	f.Add("PCIDEVICE_", "=", "", "")
	f.Fuzz(func(t *testing.T, a, b, host, machine string) {
		env := []string{a, b}
		setPCIAddresses(env, map[string]string{host: machine})
		for i, was := range []string{a, b} {
			before, _, _ := strings.Cut(was, "=")
			after, _, _ := strings.Cut(env[i], "=")
			if before != after || !strings.HasPrefix(was, pciVariable) && env[i] != was {
				t.Errorf("%q became %q", was, env[i])
			}
		}
	})
}
