package compile

import (
	"fmt"
	"path"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// node is a device file.
type node struct {
	path     string
	mode     uint32
	dev      uint64
	uid, gid uint32
}

// defaultNodes returns the device files of every container (runtime-spec, Default
// Devices).
func defaultNodes() []node {
	mk := func(name string, major, minor uint32) node {
		return node{path: "/dev/" + name, mode: unix.S_IFCHR | 0o666, dev: unix.Mkdev(major, minor)}
	}
	return []node{mk("null", 1, 3), mk("zero", 1, 5), mk("full", 1, 7), mk("random", 1, 8), mk("urandom", 1, 9), mk("tty", 5, 0)}
}

// DeviceRules returns the rules that hold for a container: the spec's own, then those of
// the default devices (runtime-spec, Default Devices). It returns none if the spec has
// none.
func DeviceRules(res *specs.LinuxResources) []specs.LinuxDeviceCgroup {
	if res == nil || len(res.Devices) == 0 {
		return nil
	}
	return append(slices.Clone(res.Devices), alwaysAllowed()...)
}

// alwaysAllowed returns the device rules that hold in addition to the spec's: device
// nodes may be made, and the default ones and terminals used (runtime-spec, Default
// Devices).
func alwaysAllowed() []specs.LinuxDeviceCgroup {
	rule := func(typ string, major, minor int64, access string) specs.LinuxDeviceCgroup {
		r := specs.LinuxDeviceCgroup{Allow: true, Type: typ, Access: access}
		if major >= 0 {
			r.Major = &major
		}
		if minor >= 0 {
			r.Minor = &minor
		}
		return r
	}
	return []specs.LinuxDeviceCgroup{
		rule("c", -1, -1, "m"), rule("b", -1, -1, "m"), rule("c", 1, 3, "rwm"), rule("c", 1, 5, "rwm"), rule("c", 1, 7, "rwm"), rule("c", 1, 8, "rwm"),
		rule("c", 1, 9, "rwm"), rule("c", 5, 0, "rwm"), rule("c", 5, 1, "rwm"), rule("c", 5, 2, "rwm"), rule("c", 136, -1, "rwm"),
	}
}

// nodes lists the device files, sorted by directory; none if /dev is the host's.
func (d *draft) nodes() ([]node, error) {
	for _, m := range d.in.Spec.Mounts {
		if path.Clean(m.Destination) == "/dev" && m.Type == "bind" {
			return nil, nil
		}
	}
	nodes := defaultNodes()
	for i, dev := range d.in.Spec.Linux.Devices {
		n, err := nodeOf(dev)
		if err != nil {
			return nil, fmt.Errorf("linux.devices[%d] (%s): %w", i, dev.Path, err)
		}
		nodes = slices.DeleteFunc(nodes, func(o node) bool { return o.path == n.path })
		nodes = append(nodes, n)
		// The list stays sorted. A generic sort would add 7 kB to the guest's agent.
		for i := len(nodes) - 1; i > 0 && len(path.Dir(nodes[i].path)) < len(path.Dir(nodes[i-1].path)); i-- {
			nodes[i], nodes[i-1] = nodes[i-1], nodes[i]
		}
	}
	return nodes, nil
}

// devices fills /dev, unless it is the host's.
func (r *rootfs) devices() error {
	nodes, err := r.nodes()
	if err != nil || len(nodes) == 0 {
		return err
	}
	r.plan.Add("umask 0", unix.SYS_UMASK, plan.V(0))
	if r.user != nil {
		r.placeDevices(nodes)
	} else {
		r.makeDevices(nodes)
	}
	r.plan.Add("umask", unix.SYS_UMASK, plan.V(0o022))
	return nil
}

func (r *rootfs) makeDevices(nodes []node) {
	r.provide("/dev", false)
	for i := 0; i < len(nodes); {
		dir := path.Dir(nodes[i].path)
		if dir != "/dev" {
			r.provide(dir, false)
		}
		fd, _ := r.target(dir)
		for ; i < len(nodes) && path.Dir(nodes[i].path) == dir; i++ {
			r.makeNode(fd, nodes[i])
		}
		if dir == "/dev" {
			r.devLinks(fd)
		}
		r.closeLast(fd)
	}
}

// makeNode makes n in the directory with descriptor fd.
func (r *rootfs) makeNode(fd int, n node) {
	name := plan.P(r.plan.String(path.Base(n.path)))
	r.plan.Add("device "+n.path, unix.SYS_MKNODAT, plan.V(fd), name, plan.V(n.mode), plan.V(n.dev)).Allow(uint16(unix.EEXIST))
	if n.uid != 0 || n.gid != 0 {
		r.plan.Add("owner of "+n.path, unix.SYS_FCHOWNAT, plan.V(fd), name, plan.V(n.uid), plan.V(n.gid), plan.V(unix.AT_SYMLINK_NOFOLLOW))
	}
}

func (r *rootfs) devLinks(dev int) {
	for _, l := range [][2]string{
		{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}, {"/proc/kcore", "core"}, {"pts/ptmx", "ptmx"},
	} {
		if l[1] == "core" && !r.in.Host.Kcore {
			continue
		}
		r.plan.Add("link /dev/"+l[1], unix.SYS_SYMLINKAT, plan.P(r.plan.String(l[0])), plan.V(dev), plan.P(r.plan.String(l[1]))).Allow(uint16(unix.EEXIST))
	}
}

func nodeOf(d specs.LinuxDevice) (node, error) {
	n := node{path: path.Clean("/" + d.Path), mode: 0o666, dev: unix.Mkdev(uint32(d.Major), uint32(d.Minor))}
	if n.path == "/" {
		return n, fmt.Errorf("path: names no file: %w", errdefs.ErrInvalidArgument)
	}
	switch d.Type {
	case "c", "u":
		n.mode |= unix.S_IFCHR
	case "b":
		n.mode |= unix.S_IFBLK
	case "p":
		n.mode |= unix.S_IFIFO
	default:
		return n, fmt.Errorf("type %q: unknown: %w", d.Type, errdefs.ErrInvalidArgument)
	}
	if d.FileMode != nil {
		n.mode = n.mode&unix.S_IFMT | uint32(d.FileMode.Perm())
	}
	if d.UID != nil {
		n.uid = *d.UID
	}
	if d.GID != nil {
		n.gid = *d.GID
	}
	return n, nil
}

// console opens the terminal in the container's own devpts, sends its master to the
// keeper, and makes its slave the standard streams.
func (r *rootfs) console() {
	how := r.plan.Words(uint64(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC), 0, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_SYMLINKS)
	master, _ := r.open("open a terminal", unix.SYS_OPENAT2, plan.V(r.fd), plan.P(r.plan.String("dev/pts/ptmx")), plan.P(how), plan.V(unix.SizeofOpenHow))
	slave := r.pty(master)
	r.provide("/dev/console", true)
	src, _ := r.open("copy of the terminal", unix.SYS_OPEN_TREE, plan.V(slave), plan.P(r.plan.String("")), plan.V(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH))
	r.attach(src, "/dev/console")
	r.closeLast(src)
	r.stdio(slave)
	r.closeLast(slave)
	r.closeLast(master)
}

// pty unlocks a master, opens its slave, sets size and owner, and sends the master to
// the keeper. It returns the slave's number.
func (d *draft) pty(master int) (slave int) {
	p := d.in.Spec.Process
	d.plan.Add("unlock the terminal", unix.SYS_IOCTL, plan.V(master), plan.V(unix.TIOCSPTLCK), plan.P(d.plan.Words(0)))
	slave, _ = d.open("open the terminal's slave", unix.SYS_IOCTL, plan.V(master), plan.V(unix.TIOCGPTPEER), plan.V(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC))
	if s := p.ConsoleSize; s != nil && s.Height != 0 && s.Width != 0 {
		size := d.plan.Words(uint64(uint16(s.Height)) | uint64(uint16(s.Width))<<16)
		d.plan.Add("size of the terminal", unix.SYS_IOCTL, plan.V(master), plan.V(unix.TIOCSWINSZ), plan.P(size))
	}
	d.plan.Add("owner of the terminal", unix.SYS_FCHOWN, plan.V(slave), plan.V(p.User.UID), plan.V(^uint32(0)))
	// A message that carries a descriptor needs at least one byte of data.
	iov := d.plan.Struct(plan.P(d.plan.Bytes([]byte{0})), plan.V(1))
	control := d.plan.Words(unix.SizeofCmsghdr+4, uint64(unix.SOL_SOCKET)|uint64(unix.SCM_RIGHTS)<<32, uint64(master))
	msg := d.plan.Struct(plan.V(0), plan.V(0), plan.P(iov), plan.V(1), plan.P(control), plan.V(24), plan.V(0))
	d.plan.Add("send the terminal", unix.SYS_SENDMSG, d.in.ownFD(fdConsole), plan.P(msg), plan.V(0)).Result(1)
	return slave
}

// stdio makes a terminal's slave the standard streams and the controlling terminal.
func (d *draft) stdio(slave int) {
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		d.plan.Add(name, unix.SYS_DUP3, plan.V(slave), plan.V(i), plan.V(0))
	}
	if d.late == nil {
		d.controlTerminal()
	}
}

// controlTerminal makes the terminal the controlling one of the new session.
func (d *draft) controlTerminal() {
	d.plan.Add("controlling terminal", unix.SYS_IOCTL, plan.V(0), plan.V(unix.TIOCSCTTY), plan.V(0))
}
