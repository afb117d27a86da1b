package kata

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestThePacketFilter: the rules are the machine's own, those of IPv6 too.
func TestThePacketFilter(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/ip6tables-restore"); err != nil {
		t.Skip("iptables is not installed")
	}
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		for _, ipv6 := range []bool{false, true} {
			chain := fmt.Sprintf("OURS%t", ipv6)
			rules := "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:" + chain + " - [0:0]\n-A INPUT -p tcp -m tcp --dport 81 -j DROP\nCOMMIT\n"
			if _, err := a.SetIPTables(t.Context(), &katav1.SetIPTablesRequest{IsIpv6: ipv6, Data: []byte(rules)}); err != nil {
				t.Fatalf("SetIPTables, IPv6 %t: %v", ipv6, err)
			}
			tool := map[bool]string{false: "iptables", true: "ip6tables"}[ipv6]
			if out := command(t, tool, "-S"); !strings.Contains(out, "--dport 81 -j DROP") || !strings.Contains(out, chain) {
				t.Errorf("%s has\n%s", tool, out)
			}
			r, err := a.GetIPTables(t.Context(), &katav1.GetIPTablesRequest{IsIpv6: ipv6})
			if err != nil || !strings.Contains(string(r.GetData()), chain) {
				t.Errorf("GetIPTables, IPv6 %t: %s, %v", ipv6, r.GetData(), err)
			}
			_, err = a.SetIPTables(t.Context(), &katav1.SetIPTablesRequest{IsIpv6: ipv6, Data: []byte("no rules")})
			if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "restore") {
				t.Errorf("SetIPTables of what is none: %v", err)
			}
		}
	})
}

// TestTheMachinesFigures: GetMetrics returns this machine's.
func TestTheMachinesFigures(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		r, err := a.GetMetrics(t.Context(), &katav1.GetMetricsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"\nkata_agent_scrape_count 1\n", "\nkata_agent_threads ", `kata_guest_meminfo{item="mem_total"} `, `kata_guest_cpu_time{cpu="total",item="idle"} `,
			`kata_guest_netdev_stat{interface="lo",item="recv_bytes"} `, `kata_guest_load{item="load1"} `, `kata_guest_vm_stat{item="nr_free_pages"} `,
		} {
			if !strings.Contains("\n"+r.GetMetrics(), want) {
				t.Errorf("there is no %q in\n%.3000s", want, r.GetMetrics())
			}
		}
	})
}

// TestTheContainersOwnThings: users by name, name servers, hooks of the machine, a module,
// and why a container ended.
func TestTheContainersOwnThings(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		// The machine's own /etc, and its modprobe.
		write := func(path, text string, mode os.FileMode) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
		}
		write(dir+"/etc/resolv.conf", "nameserver 192.0.2.1\n", 0o644)
		command(t, "mount", "--bind", dir+"/etc", "/etc")
		write(dir+"/modprobe", "#!/bin/sh\necho \"$@\" > "+dir+"/modules\n[ \"$3\" != none ] || { echo 'no such module' >&2; exit 1; }\n", 0o755)
		if _, err := os.Stat("/sbin/modprobe"); err == nil {
			command(t, "mount", "--bind", dir+"/modprobe", "/sbin/modprobe")
		} else {
			command(t, "cp", "-a", "/sbin/.", dir+"/sbin")
			command(t, "cp", dir+"/modprobe", dir+"/sbin/modprobe")
			sbin, err := filepath.EvalSymlinks("/sbin")
			if err != nil {
				t.Fatal(err)
			}
			command(t, "mount", "--bind", dir+"/sbin", sbin)
		}
		for _, kind := range []string{"prestart", "poststop"} {
			write(dir+"/hooks/"+kind+"/tell", "#!/bin/sh\necho \"$1\" >> "+dir+"/told\ncat > "+dir+"/state-"+kind+"\n", 0o755)
		}
		a := start(t)
		req := &katav1.CreateSandboxRequest{
			Hostname: "guest", SandboxId: "s1", Dns: []string{"nameserver 192.0.2.2", "search example"}, GuestHookPath: dir + "/hooks",
			KernelModules: []*katav1.KernelModule{{Name: "none"}},
			Storages:      []*katav1.Storage{{Driver: "ephemeral", Source: "shm", Fstype: "tmpfs", MountPoint: "/run/kata-containers/sandbox/shm", Options: []string{"mode=1777"}}},
		}
		if _, err := a.CreateSandbox(t.Context(), req); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "no such module") {
			t.Fatalf("CreateSandbox with a module that there is not: %v", err)
		}
		req.KernelModules[0] = &katav1.KernelModule{Name: "dummy", Parameters: []string{"numdummies=2"}}
		if _, err := a.CreateSandbox(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(dir + "/modules"); err != nil || string(b) != "-v -- dummy numdummies=2\n" {
			t.Errorf("modprobe was called with %q, %v", b, err)
		}
		if b, err := os.ReadFile("/etc/resolv.conf"); err != nil || string(b) != "nameserver 192.0.2.2\nsearch example" {
			t.Errorf("resolv.conf is %q, %v", b, err)
		}
		for name, text := range map[string]string{"passwd": "root:x:0:0::/:/bin/sh\nann:x:1234:55::/:/bin/sh\n", "group": "staff:x:55:\ndisk:x:66:ann\nextra:x:77:\n"} {
			write(filepath.Join(a.root, "etc", name), text, 0o644)
		}
		spec := a.spec(`id -u; id -g; id -G; echo "it was me" > /why; read x; exit 3`)
		write(dir+"/why", "", 0o666)
		if err := os.Chmod(dir+"/why", 0o666); err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(a.root, "why"), "", 0o644)
		spec.Mounts = append(spec.Mounts, &katav1.Mount{Destination: "/why", Type: "bind", Source: dir + "/why", Options: []string{"rbind", "rw"}})
		spec.Annotations = map[string]string{"io.kubernetes.container.terminationMessagePath": "/why"}
		by := &katav1.StringUser{Uid: "ann", AdditionalGids: []string{"extra", "88"}}
		if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: spec, StringUser: by}); err != nil {
			t.Fatalf("CreateContainer: %v", err)
		}
		if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
			t.Fatalf("StartContainer: %v", err)
		}
		exec := a.spec("id -u; id -g").GetProcess()
		if _, err := a.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: exec, StringUser: &katav1.StringUser{Uid: "ann", Gid: "disk"}}); err != nil {
			t.Fatalf("ExecProcess: %v", err)
		}
		if got := a.stdout(t, "c1", "e1"); got != "1234\n66\n" {
			t.Errorf("the exec is %q", got)
		}
		if _, err := a.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e2", Process: exec, StringUser: &katav1.StringUser{Uid: "bob"}}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "bob") {
			t.Errorf("an exec as nobody: %v", err)
		}
		if _, err := a.CloseStdin(t.Context(), &katav1.CloseStdinRequest{ContainerId: "c1", ExecId: "c1"}); err != nil {
			t.Errorf("CloseStdin: %v", err)
		}
		if got := a.stdout(t, "c1", "c1"); got != "1234\n55\n55 66 77 88\n" {
			t.Errorf("the container is %q", got)
		}
		if got := a.wait(t, "c1", "c1"); got != 3 {
			t.Errorf("status %d: %s", got, a.stderr(t, "c1", "c1"))
		}
		if r, err := a.GetDiagnosticData(t.Context(), &katav1.GetDiagnosticDataRequest{LogType: "termination_log", ContainerId: "c1"}); err != nil || r.GetData() != "it was me\n" {
			t.Errorf("GetDiagnosticData: %v, %v", r, err)
		}
		a.remove(t, "c1")
		if b, err := os.ReadFile(dir + "/told"); err != nil || string(b) != "prestart\npoststop\n" {
			t.Errorf("the hooks say %q, %v", b, err)
		}
		for _, kind := range []string{"prestart", "poststop"} {
			var state specs.State
			if b, err := os.ReadFile(dir + "/state-" + kind); err != nil || json.Unmarshal(b, &state) != nil || state.ID != "c1" {
				t.Errorf("the %s hook reads %q, %v", kind, b, err)
			}
		}
		if _, err := a.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile("/etc/resolv.conf"); err != nil || string(b) != "nameserver 192.0.2.1\n" {
			t.Errorf("at the end resolv.conf is %q, %v", b, err)
		}
	})
}

// TestVolumesGrow: a disk's file system and tmpfs grow while they are in use; a storage belongs
// to its group.
func TestVolumesGrow(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		a := start(t)
		a.sandbox(t)
		size := func(path string) uint64 {
			t.Helper()
			var st unix.Statfs_t
			if err := unix.Statfs(path, &st); err != nil {
				t.Fatal(err)
			}
			return st.Blocks * uint64(st.Bsize)
		}
		grow := func(path string, n uint64) error {
			_, err := a.ResizeVolume(t.Context(), &katav1.ResizeVolumeRequest{VolumeGuestPath: path, Size: n})
			return err
		}
		create := func(id string, list ...*katav1.Storage) error {
			_, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: a.spec("true"), Storages: list})
			return err
		}
		tmpfs := &katav1.Storage{Driver: "ephemeral", Fstype: "tmpfs", MountPoint: dir + "/tmp", Options: []string{"size=1048576", "mode=0770", "nosuid", "nodev", "noexec"}, FsGroup: &katav1.FSGroup{GroupId: 4321}}
		local := &katav1.Storage{Driver: "local", MountPoint: dir + "/local", Options: []string{"mode=0700", "fsgid=77"}}
		if err := create("c1", tmpfs, local); err != nil {
			t.Fatal(err)
		}
		if out := command(t, "stat", "-c", "%a %g", dir+"/tmp", dir+"/local"); out != "2770 4321\n2700 77\n" {
			t.Errorf("modes and groups are %q", out)
		}
		if err := grow(dir+"/tmp", 4<<20); err != nil || size(dir+"/tmp") != 4<<20 {
			t.Errorf("ResizeVolume of a tmpfs: %v, %d bytes", err, size(dir+"/tmp"))
		}
		flags := func() string {
			t.Helper()
			var st unix.Statfs_t
			if err := unix.Statfs(dir+"/tmp", &st); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("nosuid %t, nodev %t, noexec %t, ro %t", st.Flags&unix.ST_NOSUID != 0, st.Flags&unix.ST_NODEV != 0, st.Flags&unix.ST_NOEXEC != 0, st.Flags&unix.ST_RDONLY != 0)
		}
		if got := flags(); got != "nosuid true, nodev true, noexec true, ro false" {
			t.Errorf("after ResizeVolume: %s", got)
		}
		update := func(s *katav1.Storage) error {
			_, err := a.UpdateEphemeralMounts(t.Context(), &katav1.UpdateEphemeralMountsRequest{Storages: []*katav1.Storage{s}})
			return err
		}
		if err := update(&katav1.Storage{Driver: "ephemeral", MountPoint: dir + "/tmp", Options: []string{"remount", "size=8388608", "fsgid=5"}}); err != nil || size(dir+"/tmp") != 8<<20 {
			t.Errorf("UpdateEphemeralMounts: %v, %d bytes", err, size(dir+"/tmp"))
		}
		if err := update(&katav1.Storage{Driver: "ephemeral", MountPoint: dir + "/tmp", Options: []string{"exec", "ro"}}); err != nil || flags() != "nosuid true, nodev true, noexec false, ro true" {
			t.Errorf("UpdateEphemeralMounts: %v, %s", err, flags())
		}
		for what, err := range map[string]error{
			"another driver":        update(&katav1.Storage{Driver: "bind", MountPoint: dir + "/tmp", Options: []string{"size=1"}}),
			"what is not mounted":   update(&katav1.Storage{Driver: "ephemeral", MountPoint: dir + "/none", Options: []string{"size=1"}}),
			"a wrong option":        update(&katav1.Storage{Driver: "ephemeral", MountPoint: dir + "/tmp", Options: []string{"sise=1"}}),
			"a path upwards":        grow(dir+"/tmp/../tmp", 1<<20),
			"nothing":               grow(dir+"/none", 1<<20),
			"a disk that is no PCI": create("c2", &katav1.Storage{Driver: "blk", Source: "../x", Fstype: "ext4", MountPoint: dir + "/x"}),
		} {
			if status.Code(err) != codes.Internal {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := grow("/proc", 1<<20); status.Code(err) != codes.Unimplemented {
			t.Errorf("a file system that cannot grow: %v", err)
		}
		a.remove(t, "c1")
		t.Run("a disk", func(t *testing.T) {
			disk := loop(t, dir+"/disk", 16<<20)
			ext4 := &katav1.Storage{Driver: "blk", DriverOptions: []string{"create_filesystem"}, Source: disk, Fstype: "ext4", MountPoint: dir + "/ext4"}
			if err := create("c3", ext4); err != nil {
				t.Fatal(err)
			}
			before := size(dir + "/ext4")
			if err := grow(dir+"/ext4", 64<<20); status.Code(err) != codes.Internal {
				t.Errorf("more than the disk has: %v", err)
			}
			command(t, "truncate", "-s", "64M", dir+"/disk")
			command(t, "losetup", "-c", disk)
			if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0); err != nil || has == 0 {
				t.Logf("the file system does not grow without CAP_SYS_RESOURCE, which this machine does not give: %v", err)
			} else if err := grow(dir+"/ext4", 0); err != nil || size(dir+"/ext4") < before*2 {
				t.Errorf("ResizeVolume of a disk: %v, %d bytes after %d", err, size(dir+"/ext4"), before)
			}
			a.remove(t, "c3")
			if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), dir+"/ext4") {
				t.Errorf("the disk is still mounted: %v", err)
			}
		})
	})
}

// loop makes a disk of a file.
func loop(t *testing.T, file string, size int64) string {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--show", "-f", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	disk := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "losetup", "-d", disk).CombinedOutput(); err != nil {
			t.Errorf("losetup -d %s: %v: %s", disk, err, out)
		}
	})
	return disk
}
