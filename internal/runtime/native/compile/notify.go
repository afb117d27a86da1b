package compile

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

// listener is the connection to a seccomp listener. The process connects while it still
// has the host's root, and later sends the filter's notification descriptor.
type listener struct {
	socket  int      // descriptor of the connected socket
	message plan.Ptr // struct msghdr
	length  int      // of the message's text
	fd      plan.Ptr // where the descriptor's number goes in the control data
}

// checkListener refuses an invalid listener.
func checkListener(s *specs.LinuxSeccomp) error {
	if s == nil {
		return nil
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("linux.seccomp."+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	if s.ListenerPath == "" && s.ListenerMetadata != "" {
		return bad("listenerMetadata: without a listenerPath")
	}
	asks := func(r specs.LinuxSyscall) bool { return r.Action == specs.ActNotify }
	if s.DefaultAction != specs.ActNotify && !slices.ContainsFunc(s.Syscalls, asks) {
		return nil
	}
	// The process itself sends the descriptor to the listener, by sendmsg, which
	// therefore cannot wait for the listener.
	last := s.DefaultAction
	for _, r := range s.Syscalls {
		if slices.Contains(r.Names, "sendmsg") && (asks(r) || len(r.Args) == 0) {
			last = r.Action
		}
	}
	switch {
	case last == specs.ActNotify:
		return bad("syscalls: SCMP_ACT_NOTIFY for sendmsg, which passes the listener on")
	case s.ListenerPath == "":
		return bad("listenerPath: empty, and SCMP_ACT_NOTIFY is used")
	case !path.IsAbs(s.ListenerPath):
		return bad("listenerPath: %q is not absolute", s.ListenerPath)
	case len(s.ListenerPath) > maxSocketPath:
		return bad("listenerPath: longer than %d bytes", maxSocketPath)
	case strings.ContainsRune(s.ListenerPath, 0):
		return bad("listenerPath: holds a NUL")
	}
	return nil
}

// prepareFilter compiles the filter, and makes the socket for one with a listener. It
// must come while /proc is the host's.
func (c *compiler) prepareFilter(state specs.State) error {
	s := c.in.Spec.Linux.Seccomp
	if s == nil {
		return nil
	}
	if l := c.in.Confine; l != nil && l.Filter != nil {
		c.filter = l.Filter
		return nil
	}
	if err := checkListener(s); err != nil {
		return err
	}
	f, err := seccomp.Compile(s)
	if err != nil {
		return fmt.Errorf("linux.%w", err)
	}
	c.filter = &f
	if !f.Notify {
		return nil
	}
	return c.prepareListener(s, state)
}

// maxSocketPath is that of struct sockaddr_un, less the NUL.
const maxSocketPath = 107

// pidRoom is room for the digits of a pid, which the process fills in itself.
const pidRoom = "          "

// prepareListener makes the socket and the message. The process writes its own pid into the
// message: it reads the target of the link /proc/self, the pid in the host's numbers; a JSON number
// may be followed by spaces. The pid in the state is that of an exec's container, or selfPid.
func (c *compiler) prepareListener(s *specs.LinuxSeccomp, state specs.State) error {
	head, err := json.Marshal(specs.ContainerProcessState{Version: state.Version, Fds: []string{specs.SeccompFdName}, Metadata: s.ListenerMetadata, State: state})
	if err != nil {
		return err
	}
	// Find the places of the pids from the text before them, which cannot occur
	// elsewhere: a value that users choose contains no unescaped quote.
	text, from := string(head), 0
	var holes []int
	hole := func(after, value string) {
		at := from + strings.Index(text[from:], after) + len(after)
		holes, from = append(holes, at), at+len(pidRoom)
		text = text[:at] + pidRoom + strings.TrimPrefix(text[at:], value)
	}
	hole(`"fds":["`+specs.SeccompFdName+`"],"pid":`, "0")
	if state.Pid == selfPid {
		hole(`","pid":`, strconv.Itoa(selfPid))
	}
	at := c.plan.Bytes([]byte(text))
	l := &listener{length: len(text)}
	for _, h := range holes {
		if c.late != nil { // it is the pid of the second child, which does not exist yet
			c.late.notify = append(c.late.notify, at+plan.Ptr(h))
			continue
		}
		c.plan.Add("our pid", unix.SYS_READLINKAT, plan.V(unix.AT_FDCWD), plan.P(c.plan.String("/proc/self")), plan.P(at+plan.Ptr(h)), plan.V(len(pidRoom)))
	}
	iov := c.plan.Struct(plan.P(at), plan.V(len(text)))
	control := c.plan.Words(unix.SizeofCmsghdr+4, uint64(unix.SOL_SOCKET)|uint64(unix.SCM_RIGHTS)<<32, 0)
	l.fd = control + 16
	l.message = c.plan.Struct(plan.V(0), plan.V(0), plan.P(iov), plan.V(1), plan.P(control), plan.V(24), plan.V(0))
	l.socket, _ = c.open("socket for the seccomp listener", unix.SYS_SOCKET, plan.V(unix.AF_UNIX), plan.V(unix.SOCK_STREAM|unix.SOCK_CLOEXEC), plan.V(0))
	c.listener = l
	return nil
}

// selfPid stands for the pid of the process that the plan starts.
const selfPid = -1

// connectListener connects while the host's files are still visible, and as late as
// possible: the listener may serve one connection at a time.
func (c *compiler) connectListener(s *specs.LinuxSeccomp) {
	if c.listener == nil {
		return
	}
	address := append([]byte{unix.AF_UNIX, 0}, s.ListenerPath...)
	c.plan.Add("connect to the seccomp listener "+s.ListenerPath, unix.SYS_CONNECT, plan.V(c.listener.socket), plan.P(c.plan.Bytes(append(address, 0))), plan.V(len(address)+1))
}

// installFilter installs a filter. If it has a listener, its descriptor is sent to the listener
// before the process continues.
func (c *compiler) installFilter(f *seccomp.Filter) {
	prog := make([]byte, 0, 8*len(f.Program))
	for _, in := range f.Program {
		prog = append(prog, byte(in.Code), byte(in.Code>>8), in.Jt, in.Jf, byte(in.K), byte(in.K>>8), byte(in.K>>16), byte(in.K>>24))
	}
	fprog := c.plan.Struct(plan.V(len(f.Program)), plan.P(c.plan.Bytes(prog)))
	if !f.Notify {
		c.plan.Add("seccomp", unix.SYS_SECCOMP, plan.V(unix.SECCOMP_SET_MODE_FILTER), plan.V(f.Flags), plan.P(fprog))
		return
	}
	l, fd := c.listener, c.plan.NewSlot()
	c.plan.Add("seccomp with a listener", unix.SYS_SECCOMP, plan.V(unix.SECCOMP_SET_MODE_FILTER), plan.V(f.Flags|unix.SECCOMP_FILTER_FLAG_NEW_LISTENER), plan.P(fprog)).To(fd)
	c.plan.AddStore("the listener's descriptor", fd, l.fd)
	c.plan.Add("send the seccomp listener", unix.SYS_SENDMSG, plan.V(l.socket), plan.P(l.message), plan.V(unix.MSG_NOSIGNAL)).Result(uint64(l.length))
	c.plan.Add("close the listener", unix.SYS_CLOSE, plan.S(fd))
	c.plan.Add("close its socket", unix.SYS_CLOSE, plan.V(l.socket))
}
