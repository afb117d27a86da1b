package names

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// sockets are those at which a sandbox asks.
type sockets struct {
	udp, tcp         int
	udpPort, tcpPort uint16
}

// errNamespace means that the sandbox is gone.
var errNamespace = errors.New("open its network namespace")

// listen opens sockets in a network namespace, at ports that the kernel chooses: the sandbox may
// run a name server of its own at 53. Questions to port 53 of our address are redirected to the
// sockets.
func listen(namespace string, redirect func(*os.File, uint16, uint16) error) (*sockets, error) {
	ns, err := os.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNamespace, err)
	}
	defer func() { _ = ns.Close() }()
	type result struct {
		s   *sockets
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		s, err := inside(ns)
		done <- result{s, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, r.err
	}
	if err := redirect(ns, r.s.udpPort, r.s.tcpPort); err != nil {
		r.s.close()
		return nil, fmt.Errorf("lead questions to the name server: %w", err)
	}
	return r.s, nil
}

// inside opens the sockets in a namespace. It must be called on a thread of its own, which is
// unlocked when it is in its former namespace again.
func inside(ns *os.File) (*sockets, error) {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("%w: %w", errNamespace, err)
	}
	s, err := open()
	if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine
	}
	return s, err
}

func open() (s *sockets, err error) {
	s = &sockets{udp: -1, tcp: -1}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.udp, s.udpPort, err = bind(unix.SOCK_DGRAM); err != nil {
		return s, fmt.Errorf("open a socket: %w", err)
	}
	if s.tcp, s.tcpPort, err = bind(unix.SOCK_STREAM); err != nil {
		return s, fmt.Errorf("open a socket: %w", err)
	}
	return s, unix.Listen(s.tcp, maxStreams)
}

func bind(kind int) (fd int, port uint16, err error) {
	if fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, 0, err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: Address().As4()})
	var at unix.Sockaddr
	if err == nil {
		at, err = unix.Getsockname(fd)
	}
	in, ok := at.(*unix.SockaddrInet4)
	if err != nil || !ok {
		return -1, 0, errors.Join(err, unix.Close(fd))
	}
	return fd, uint16(in.Port), nil
}

// files are the sockets as files, which the caller closes.
func (s *sockets) files() []*os.File {
	files := []*os.File{os.NewFile(uintptr(s.udp), "udp"), os.NewFile(uintptr(s.tcp), "tcp")}
	s.udp, s.tcp = -1, -1
	return files
}

func (s *sockets) close() {
	for _, fd := range []int{s.udp, s.tcp} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
