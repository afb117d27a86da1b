package kata

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/roottest"
)

func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestTheMachinesNetwork: links, routes and neighbours, before there is a sandbox, as
// shims set them up.
func TestTheMachinesNetwork(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		command(t, "ip", "link", "add", "plugged", "type", "veth", "peer", "name", "eth0")
		command(t, "ip", "link", "set", "plugged", "address", "02:00:00:00:00:01")
		command(t, "ip", "link", "set", "eth0", "up")
		command(t, "sysctl", "-q", "-w", "net.ipv6.conf.eth0.disable_ipv6=0", "net.ipv6.conf.plugged.disable_ipv6=0") // for any default of the host
		want := &katatypes.Interface{Name: "eth0", HwAddr: "02:00:00:00:00:01", Mtu: 1400, IPAddresses: []*katatypes.IPAddress{
			{Address: "192.0.2.2", Mask: "24"}, {Family: katatypes.IPFamily_v6, Address: "2001:db8::2", Mask: "64"},
		}}
		if _, err := a.UpdateInterface(t.Context(), &katav1.UpdateInterfaceRequest{Interface: want}); err != nil {
			t.Fatalf("UpdateInterface: %v", err)
		}
		if out := command(t, "ip", "addr", "show", "eth0"); !strings.Contains(out, "02:00:00:00:00:01") || !strings.Contains(out, "mtu 1400") || !strings.Contains(out, "192.0.2.2/24") || !strings.Contains(out, "2001:db8::2/64") || !strings.Contains(out, "UP") {
			t.Errorf("eth0 is\n%s", out)
		}
		if out := command(t, "ip", "link", "show", "plugged"); strings.Contains(out, "02:00:00:00:00:01") {
			t.Errorf("the link that had the name did not get the other's:\n%s", out)
		}
		command(t, "ip", "link", "set", "plugged", "up")
		links, err := a.ListInterfaces(t.Context(), &katav1.ListInterfacesRequest{})
		if err != nil || !strings.Contains(links.String(), "192.0.2.2") {
			t.Errorf("ListInterfaces: %v, %v", links, err)
		}
		routes, err := a.UpdateRoutes(t.Context(), &katav1.UpdateRoutesRequest{Routes: &katav1.Routes{Routes: []*katatypes.Route{
			{Gateway: "198.51.100.1", Device: "eth0"}, // reached by the next one
			{Dest: "198.51.100.0/24", Device: "eth0", Scope: unix.RT_SCOPE_LINK},
			{Gateway: "2001:db8::1", Device: "eth0", Family: katatypes.IPFamily_v6},
		}}})
		if err != nil {
			t.Fatalf("UpdateRoutes: %v", err)
		}
		if out := command(t, "ip", "route"); !strings.Contains(out, "default via 198.51.100.1 dev eth0") || !strings.Contains(out, "198.51.100.0/24 dev eth0") {
			t.Errorf("routes are\n%s", out)
		}
		if out := command(t, "ip", "-6", "route"); !strings.Contains(out, "default via 2001:db8::1 dev eth0") {
			t.Errorf("IPv6 routes are\n%s", out)
		}
		again, err := a.ListRoutes(t.Context(), &katav1.ListRoutesRequest{})
		if err != nil || again.String() != routes.String() {
			t.Errorf("ListRoutes: %v, %v; UpdateRoutes answered %v", again, err, routes)
		}
		neighbor := &katatypes.ARPNeighbor{ToIPAddress: &katatypes.IPAddress{Address: "192.0.2.9"}, Device: "eth0", Lladdr: "02:00:00:00:00:09"}
		if _, err := a.AddARPNeighbors(t.Context(), &katav1.AddARPNeighborsRequest{Neighbors: &katav1.ARPNeighbors{ARPNeighbors: []*katatypes.ARPNeighbor{neighbor}}}); err != nil {
			t.Fatalf("AddARPNeighbors: %v", err)
		}
		if out := command(t, "ip", "neigh"); !strings.Contains(out, "192.0.2.9 dev eth0 lladdr 02:00:00:00:00:09 PERMANENT") {
			t.Errorf("neighbours are\n%s", out)
		}
		for what, err := range map[string]error{
			"a mask that is none": second(a.UpdateInterface(t.Context(), &katav1.UpdateInterfaceRequest{Interface: &katatypes.Interface{Name: "eth0", IPAddresses: []*katatypes.IPAddress{{Address: "192.0.2.2", Mask: "33"}}}})),
			"an address":          second(a.UpdateRoutes(t.Context(), &katav1.UpdateRoutesRequest{Routes: &katav1.Routes{Routes: []*katatypes.Route{{Dest: "x", Device: "eth0"}}}})),
			"no address":          second(a.AddARPNeighbors(t.Context(), &katav1.AddARPNeighborsRequest{Neighbors: &katav1.ARPNeighbors{ARPNeighbors: []*katatypes.ARPNeighbor{{Device: "eth0"}}}})),
		} {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err = a.UpdateInterface(t.Context(), &katav1.UpdateInterfaceRequest{Interface: &katatypes.Interface{Name: "none"}})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "Link not found") { // then the shim tries again
			t.Errorf("a link that there is not: %v", err)
		}
	})
}

func second[A any](_ A, err error) error { return err }

// TestTheSandboxsDNS: the machine's resolv.conf is the sandbox's while there is one.
func TestTheSandboxsDNS(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const file = "/etc/resolv.conf"
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "own"), []byte("nameserver 192.0.2.1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Skip(err)
		}
		command(t, "mount", "--bind", filepath.Join(dir, "own"), file) // the test's own
		a := start(t)
		lines := []string{"nameserver 192.0.2.53", "search example.org", ""}
		if _, err := a.CreateSandbox(t.Context(), &katav1.CreateSandboxRequest{SandboxId: "s1", Dns: lines}); err != nil {
			t.Fatalf("CreateSandbox: %v", err)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != strings.Join(lines, "\n") {
			t.Errorf("with the sandbox it is %q, %v", b, err)
		}
		if _, err := a.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
			t.Fatalf("DestroySandbox: %v", err)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != "nameserver 192.0.2.1\n" {
			t.Errorf("after it, it is %q, %v", b, err)
		}
	})
}

// TestFilesFromTheHost: a container sees the files of CopyFile, which can write nothing else of
// the machine.
func TestFilesFromTheHost(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if err := os.MkdirAll(guest.Shared, 0o750); err != nil {
			t.Fatal(err)
		}
		command(t, "mount", "-t", "tmpfs", "tmpfs", guest.Shared) // the test's own
		a := start(t)
		a.sandbox(t)
		text := strings.Repeat("nameserver 192.0.2.53\n", 3)
		half := len(text) / 2
		for _, part := range []struct{ from, to int }{{0, half}, {half, len(text)}} {
			_, err := a.CopyFile(t.Context(), &katav1.CopyFileRequest{
				Path: guest.Shared + "/c1-resolv.conf", FileSize: int64(len(text)), FileMode: unix.S_IFREG | 0o644, DirMode: 0o755, Offset: int64(part.from), Data: []byte(text[part.from:part.to]),
			})
			if err != nil {
				t.Fatalf("CopyFile: %v", err)
			}
		}
		spec := a.spec("cat /etc/resolv.conf")
		spec.Mounts = append(spec.Mounts, &katav1.Mount{Destination: "/etc/resolv.conf", Type: "bind", Source: guest.Shared + "/c1-resolv.conf", Options: []string{"rbind", "ro"}})
		a.run(t, "c1", spec)
		if got := a.stdout(t, "c1", "c1"); got != text {
			t.Errorf("the container reads %q", got)
		}
		if err := os.Symlink("/tmp", filepath.Join(guest.Shared, "out")); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{guest.Shared + "/out/x", guest.Shared + "/../x", "/run/kata-containers/x", "/etc/x", guest.Shared} {
			_, err := a.CopyFile(t.Context(), &katav1.CopyFileRequest{Path: path, FileSize: 1, FileMode: unix.S_IFREG | 0o644, DirMode: 0o755, Data: []byte("x")})
			if status.Code(err) != codes.Internal {
				t.Errorf("CopyFile to %s: %v", path, err)
			}
		}
		// The host makes a link, and requests a mount of its target.
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("the guest's"), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, target := range map[string]string{"c2-link": secret, "dir": filepath.Dir(secret)} {
			_, err := a.CopyFile(t.Context(), &katav1.CopyFileRequest{Path: guest.Shared + "/" + name, FileSize: int64(len(target)), FileMode: unix.S_IFLNK | 0o777, Data: []byte(target)})
			if err != nil {
				t.Fatalf("CopyFile of a link: %v", err)
			}
		}
		for _, source := range []string{"/c2-link", "/dir", "/dir/secret"} {
			spec := a.spec("cat /secret /secret/secret")
			spec.Mounts = append(spec.Mounts, &katav1.Mount{Destination: "/secret", Type: "bind", Source: guest.Shared + source, Options: []string{"rbind", "ro"}})
			deep := &katav1.Storage{Driver: "ephemeral", Source: "tmpfs", Fstype: "tmpfs", MountPoint: "/run/kata-containers/c2/deep/er"}
			if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c2", ExecId: "c2", OCI: spec, Storages: []*katav1.Storage{deep}}); err == nil {
				t.Errorf("a container mounts %s, a link out of the share", source)
				a.remove(t, "c2")
			}
			if left, err := filepath.Glob("/run/kata-containers/c2*"); err != nil || len(left) > 0 {
				t.Errorf("the container that failed left %q, %v", left, err)
			}
		}
		r, err := a.GetVolumeStats(t.Context(), &katav1.VolumeStatsRequest{VolumeGuestPath: guest.Shared})
		if err != nil || len(r.GetUsage()) != 2 || r.GetUsage()[0].GetTotal() == 0 || r.GetUsage()[0].GetUsed() == 0 || r.GetVolumeCondition().GetAbnormal() {
			t.Errorf("GetVolumeStats: %v, %v", r, err)
		}
		if _, err := a.GetVolumeStats(t.Context(), &katav1.VolumeStatsRequest{VolumeGuestPath: "/nowhere"}); status.Code(err) != codes.Internal {
			t.Errorf("GetVolumeStats of nothing: %v", err)
		}
	})
}

// TestStoragesOfContainers: an overlay of bind mounts as a container's root; a storage of
// two containers stays for the second; nothing stays behind the last.
func TestStoragesOfContainers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		a := start(t)
		a.sandbox(t)
		command(t, "mount", "-t", "tmpfs", "tmpfs", dir) // an overlay's upper layer must not be on another overlay
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		for _, d := range []string{"upper", "work"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		shared := &katav1.Storage{Driver: "bind", Source: a.root, MountPoint: dir + "/lower", Options: []string{"ro", "nosuid"}}
		create := func(id string, more ...*katav1.Storage) {
			t.Helper()
			spec := a.spec("echo " + id + " > /made; echo x > /" + id + "; exit 0")
			spec.Root.Path = dir + "/root"
			if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: spec, Storages: append([]*katav1.Storage{shared}, more...)}); err != nil {
				t.Fatalf("CreateContainer: %v", err)
			}
			if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: id}); err != nil {
				t.Fatalf("StartContainer: %v", err)
			}
			if got := a.wait(t, id, id); got != 0 {
				t.Errorf("%s: status %d: %s", id, got, a.stderr(t, id, id))
			}
		}
		overlay := &katav1.Storage{Driver: "overlayfs", Source: "overlay", Fstype: "overlay", MountPoint: dir + "/root", Options: []string{"lowerdir=" + dir + "/lower", "upperdir=" + dir + "/upper", "workdir=" + dir + "/work"}}
		create("c1", overlay)
		create("c2", overlay)
		if b, err := os.ReadFile(filepath.Join(dir, "upper/made")); err != nil || string(b) != "c2\n" {
			t.Errorf("the upper layer has %q, %v", b, err)
		}
		mounts := func() string {
			t.Helper()
			b, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		a.remove(t, "c1")
		if now := mounts(); !strings.Contains(now, dir+"/root") || !strings.Contains(now, dir+"/lower") {
			t.Errorf("the second container's storages are gone:\n%s", now)
		}
		a.remove(t, "c2")
		if now := mounts(); strings.Contains(now, dir+"/root") || strings.Contains(now, dir+"/lower") {
			t.Errorf("storages are left:\n%s", now)
		}
		for what, bad := range map[string]*katav1.Storage{
			"an unknown driver": {Driver: "none", Source: "x", MountPoint: dir + "/bad"},
			"no path":           {Driver: "bind", Source: dir, MountPoint: "bad"},
			"a path upwards":    {Driver: "bind", Source: dir, MountPoint: dir + "/a/../../bad"},
			"no source":         {Driver: "bind", Source: dir + "/nothing", MountPoint: dir + "/bad"},
			"a wrong option":    {Driver: "ephemeral", MountPoint: dir + "/bad", Options: []string{"sise=1"}},
		} {
			_, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c3", ExecId: "c3", OCI: a.spec("true"), Storages: []*katav1.Storage{shared, bad}})
			if status.Code(err) != codes.Internal {
				t.Errorf("%s: %v", what, err)
			}
		}
		if now := mounts(); strings.Contains(now, dir+"/lower") {
			t.Errorf("a refused container left:\n%s", now)
		}
	})
}
