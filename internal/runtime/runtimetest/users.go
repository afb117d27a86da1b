package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// hostRoot is the ID of root, outside, in the suite's user namespaces.
const hostRoot = 200000

// inUsers puts a spec into a user namespace of its own.
func inUsers(s *specs.Spec) {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: hostRoot, Size: 65536}}
	s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
}

// ownedRoot is a root filesystem like b.Root that belongs to a user namespace's root:
// runtimes make mount points with that root's rights.
func (b *bench) ownedRoot() string {
	b.Helper()
	root := filepath.Join(b.Dir, "owned")
	if _, err := os.Stat(root); err == nil {
		return root
	}
	for _, d := range []string{"", "bin", "etc", "tmp", "proc", "sys", "dev", "mnt"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	for _, f := range []string{"etc/passwd", "etc/group"} {
		text, err := os.ReadFile(filepath.Join(b.Root, f))
		if err == nil {
			err = os.WriteFile(filepath.Join(root, f), text, 0o644)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(root, "bin"), os.DirFS(filepath.Join(b.Root, "bin"))); err != nil {
		b.Fatal(err)
	}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, hostRoot, hostRoot)
	})
	if err != nil {
		b.Fatal(err)
	}
	return root
}

// mapped prepares a container in a user namespace, with a root filesystem of its own.
func (b *bench) mapped(script string, edit ...func(*specs.Spec)) *container {
	b.Helper()
	features, err := b.Runtime.Features(b.ctx())
	if err != nil {
		b.Fatal(err)
	}
	if !features.UserNamespaces {
		b.Skip("this runtime has no user namespaces")
	}
	was := b.Root
	b.Root = b.ownedRoot()
	defer func() { b.Root = was }()
	c := b.container(script, append([]func(*specs.Spec){inUsers}, edit...)...)
	c.UID, c.GID = hostRoot+c.Spec.Process.User.UID, hostRoot+c.Spec.Process.User.GID
	return c
}

// readyIn is ready for a container that has another root.
func (c *container) readyIn(root string) (wait func()) {
	was := c.Root
	c.Root = root
	defer func() { c.Root = was }()
	return c.ready()
}

// users: root inside is an ordinary user outside, and has power only over the container's own
// objects.
func users(b *bench) {
	c := b.mapped(`echo "id: $(id -u) $(id -g)"; echo "map: $(tr -s ' ' < /proc/self/uid_map)"; echo "pid: $$"
hostname changed && echo "host: $(hostname)"; echo 81 > /proc/sys/net/ipv4/ip_unprivileged_port_start; echo "port: $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)"
mount -t tmpfs x /mnt && echo "mount: yes"; echo "null: $(echo x > /dev/null && wc -c < /dev/null)"; touch /tmp/mine && echo "owner: $(stat -c %u /tmp/mine)"
mknod /tmp/sda b 8 0 2>/dev/null && echo "device: made"; echo done: yes > /dev/stdout`, func(s *specs.Spec) {
		all := []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_MKNOD", "CAP_DAC_OVERRIDE"}
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Permitted: all, Effective: all}
		s.Linux.ReadonlyPaths, s.Linux.Seccomp = nil, nil
	})
	got := lines(c.start().output())
	for key, want := range map[string]string{
		"id": "0 0", "map": fmt.Sprintf("0 %d 65536", hostRoot), "pid": "1", "host": "changed", "port": "81", "mount": "yes", "null": "0", "owner": "0", "device": "", "done": "yes",
	} {
		b.want(key, got[key], want)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(b.ownedRoot(), "tmp/mine"), &st); err != nil || st.Uid != hostRoot {
		b.Errorf("outside its file is %d's, %v", st.Uid, err)
	}
}

// usersExec: an exec runs in the user namespace with its IDs, and its user owns its
// streams.
func usersExec(b *bench) {
	c := b.mapped("echo > /tmp/ready; sleep 1000")
	ready := c.readyIn(b.ownedRoot())
	c.start()
	ready()
	e := c.exec("e", "id -u; id -g; readlink /proc/self/ns/user; echo out > /proc/self/fd/1")
	e.Spec.User = specs.User{UID: 33, GID: 44}
	e.UID, e.GID = hostRoot+33, hostRoot+44
	if _, err := b.Runtime.Exec(b.ctx(), e); err != nil {
		b.Fatal(err)
	}
	x := b.wait(e.Ref)
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", c.pid))
	if err != nil {
		b.Fatal(err)
	}
	out, err := os.ReadFile(e.IO.Sinks[0].Path)
	if want := "33\n44\n" + ns + "\nout\n"; err != nil || string(out) != want || x.Exit.Code != 0 {
		b.Errorf("exit %+v, output %q, %v, want %q", x.Exit, out, err, want)
	}
	t := c.exec("t", "test -t 0 && echo tty > /dev/tty")
	t.Spec.Terminal, t.IO.TTY = true, true
	t.Spec.User = specs.User{UID: 33, GID: 44}
	if _, err := b.Runtime.Exec(b.ctx(), t); err != nil {
		b.Fatal(err)
	}
	b.want("exit code of the terminal", b.wait(t.Ref).Exit.Code, 0)
	if out, err = os.ReadFile(t.IO.Sinks[0].Path); err != nil || string(out) != "tty\r\n" {
		b.Errorf("terminal %q, %v", out, err)
	}
	c.forget(e.Ref)
	c.forget(t.Ref)
	c.delete(true)
	c.wait(c.ref)
}

// usersJoined: a container joins another's user namespace and the ones that it
// owns, with a pid namespace and a root of its own.
func usersJoined(b *bench) {
	first := b.mapped("echo > /tmp/ready; sleep 1000", func(s *specs.Spec) { s.Hostname = "first" })
	ready := first.readyIn(b.ownedRoot())
	first.start()
	ready()
	second := b.mapped("id -u; hostname; readlink /proc/self/ns/user; echo $$; ls /proc | grep -c '^[0-9]'; mount -t tmpfs x /mnt && echo mounted", func(s *specs.Spec) {
		for i, n := range s.Linux.Namespaces {
			if file := map[specs.LinuxNamespaceType]string{specs.UserNamespace: "user", specs.UTSNamespace: "uts", specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc"}[n.Type]; file != "" {
				s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", first.pid, file)
			}
		}
		all := []string{"CAP_SYS_ADMIN"}
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Permitted: all, Effective: all}
		s.Linux.Seccomp = nil
	})
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", first.pid))
	if err != nil {
		b.Fatal(err)
	}
	out := strings.Fields(second.start().output())
	if len(out) != 6 || out[0] != "0" || out[1] != "first" || out[2] != ns || out[3] != "1" || out[5] != "mounted" {
		b.Errorf("inside: %q, want 0 first %s 1 and a mount", out, ns)
	}
	first.delete(true)
	first.wait(first.ref)
}

// usersMounts: a directory of the host's root is the container root's.
func usersMounts(b *bench) {
	if f, err := b.Runtime.Features(b.ctx()); err != nil || !f.IDMappedMounts {
		b.Skip("this runtime has no id-mapped mounts")
	}
	dir := filepath.Join(b.TempDir(), "shared") // on a disk: a tmpfs maps no owners before Linux 6.3
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("seen"), 0o600); err != nil {
		b.Fatal(err)
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: hostRoot, Size: 65536}}
	c := b.mapped("cat /mnt/f; touch /mnt/made; stat -c ' %u' /mnt/f /mnt/made", func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: dir, Options: []string{"bind", "idmap"}, UIDMappings: ids, GIDMappings: ids})
	})
	b.want("output", c.start().output(), "seen 0\n 0\n")
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "made"), &st); err != nil || st.Uid != 0 {
		b.Errorf("outside its file is %d's, %v", st.Uid, err)
	}
}
