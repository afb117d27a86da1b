package wasm

import (
	"context"
	"io/fs"
	"reflect"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"
)

// nonblockWait is how long a call waits that must not block, in milliseconds: many programs repeat it until it succeeds, and WASI's
// poll_oneoff does not make them wait.
const nonblockWait = 10

// listener is the descriptor of a listening socket.
type listener int

func (l listener) open(experimentalsys.Oflag) (experimentalsys.File, experimentalsys.Errno) {
	fd, err := duplicate(int(l))
	if err != nil {
		return nil, errnoOf(err)
	}
	return &socket{fd: fd, listens: true}, 0
}

func (l listener) stat() (sys.Stat_t, experimentalsys.Errno) { return statOf(int(l)) }

// socket is an open socket. It has the methods that wazero's own functions for sockets look for.
type socket struct {
	experimentalsys.UnimplementedFile
	fd       int
	listens  bool
	arrivals bool // it listens, and the board sends its connections
	nonblock bool
}

var _ experimentalsys.PollableFile = (*socket)(nil)

// Stat implements experimentalsys.File.
func (s *socket) Stat() (sys.Stat_t, experimentalsys.Errno) { return statOf(s.fd) }

// IsDir implements experimentalsys.File.
func (s *socket) IsDir() (bool, experimentalsys.Errno) { return false, 0 }

// IsNonblock implements experimentalsys.PollableFile.
func (s *socket) IsNonblock() bool { return s.nonblock }

// SetNonblock implements experimentalsys.PollableFile.
func (s *socket) SetNonblock(on bool) experimentalsys.Errno {
	s.nonblock = on
	return 0
}

// Poll implements experimentalsys.Pollable.
func (s *socket) Poll(flag experimentalsys.Pflag, milliseconds int32) (bool, experimentalsys.Errno) {
	return poll(s.fd, flag, milliseconds)
}

// poll waits until a descriptor is ready.
func poll(fd int, flag experimentalsys.Pflag, milliseconds int32) (bool, experimentalsys.Errno) {
	var events int16
	if flag&experimentalsys.POLLIN != 0 {
		events |= unix.POLLIN
	}
	if flag&experimentalsys.POLLOUT != 0 {
		events |= unix.POLLOUT
	}
	n, errno := again(func() (int, error) {
		return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int(milliseconds))
	})
	return n > 0, errno
}

// when calls f when the socket is ready. A socket that must not block has a moment.
func (s *socket) when(events int16, f func() (int, error)) (int, experimentalsys.Errno) {
	for {
		n, errno := again(f)
		if errno != experimentalsys.EAGAIN {
			return n, errno
		}
		if s.nonblock {
			if errno := wait(s.fd, events, nonblockWait); errno != 0 {
				return 0, errno
			}
			return again(f)
		}
		if errno := wait(s.fd, events, -1); errno != 0 {
			return 0, errno
		}
	}
}

// accept returns the next connection. No call blocks in the kernel: the listening socket is the agent's, too, which may have made
// it one that does or does not.
func (s *socket) accept(nonblock bool) (*socket, experimentalsys.Errno) {
	blocks := s.nonblock
	s.nonblock = s.nonblock || nonblock
	defer func() { s.nonblock = blocks }()
	fd, errno := s.when(unix.POLLIN, func() (int, error) {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, 0); n == 0 || err != nil {
			if err == nil {
				err = unix.EAGAIN
			}
			return 0, err
		}
		if s.arrivals {
			return arrival(s.fd)
		}
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		return fd, err
	})
	if errno != 0 {
		return nil, errno
	}
	return &socket{fd: fd, nonblock: nonblock}, 0
}

// Read implements experimentalsys.File.
func (s *socket) Read(p []byte) (int, experimentalsys.Errno) { return s.Recvfrom(p, 0) }

// Recvfrom implements sock_recv.
func (s *socket) Recvfrom(p []byte, flags int) (int, experimentalsys.Errno) {
	if s.listens {
		return 0, experimentalsys.EINVAL
	}
	return s.when(unix.POLLIN, func() (int, error) {
		n, _, err := unix.Recvfrom(s.fd, p, flags&(unix.MSG_PEEK|unix.MSG_WAITALL)|unix.MSG_DONTWAIT)
		return n, err
	})
}

// Write implements experimentalsys.File.
func (s *socket) Write(p []byte) (int, experimentalsys.Errno) {
	if s.listens {
		return 0, experimentalsys.EINVAL
	}
	return s.when(unix.POLLOUT, func() (int, error) {
		return unix.SendmsgN(s.fd, p, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
}

// Shutdown implements sock_shutdown.
func (s *socket) Shutdown(how int) experimentalsys.Errno {
	_, errno := again(func() (int, error) { return 0, unix.Shutdown(s.fd, how) })
	return errno
}

// Close implements experimentalsys.File.
func (s *socket) Close() experimentalsys.Errno {
	if err := unix.Close(s.fd); err != nil {
		return errnoOf(err)
	}
	return 0
}

// exportAccept replaces wazero's sock_accept, which accepts from sockets that wazero itself has opened.
func exportAccept(host wazero.HostModuleBuilder) {
	i32 := api.ValueTypeI32
	host.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context, mod api.Module, stack []uint64) {
		stack[0] = uint64(wasiErrno(sockAccept(mod, int32(stack[0]), uint32(stack[1]), uint32(stack[2]))))
	}), []api.ValueType{i32, i32, i32}, []api.ValueType{i32}).WithName("sock_accept").Export("sock_accept")
}

func sockAccept(mod api.Module, fd int32, flags, result uint32) experimentalsys.Errno {
	const nonblock = 4 // fdflags.nonblock
	table := fileTable(mod)
	s, ok := lookup(table, fd).(*socket)
	switch {
	case !ok:
		return experimentalsys.EBADF
	case !s.listens:
		return experimentalsys.EINVAL
	}
	c, errno := s.accept(flags&nonblock != 0)
	if errno != 0 {
		return errno
	}
	number, errno := insert(table, c)
	if errno != 0 {
		_ = c.Close()
		return errno
	}
	if !mod.Memory().WriteUint32Le(result, uint32(number)) {
		return experimentalsys.EFAULT
	}
	return 0
}

// The program's table of files is in wazero's internal packages, but the fields and methods that lead to it are exported: its own
// functions of WASI use them. A test fails when another version has them no more.

func fileTable(mod api.Module) reflect.Value {
	return reflect.ValueOf(mod).Elem().FieldByName("Sys").MethodByName("FS").Call(nil)[0]
}

func lookup(table reflect.Value, fd int32) any {
	out := table.MethodByName("LookupFile").Call([]reflect.Value{reflect.ValueOf(fd)})
	if !out[1].Bool() {
		return nil
	}
	return out[0].Elem().FieldByName("File").Interface()
}

func insert(table reflect.Value, s *socket) (int32, experimentalsys.Errno) {
	out := table.MethodByName("OpenFile").Call([]reflect.Value{
		reflect.ValueOf(&opened{file: s}), reflect.ValueOf("connection"), reflect.ValueOf(experimentalsys.Oflag(0)), reflect.ValueOf(fs.FileMode(0)),
	})
	return int32(out[0].Int()), out[1].Interface().(experimentalsys.Errno)
}

// opened is a file system with one file, which is open already.
type opened struct {
	experimentalsys.UnimplementedFS
	file experimentalsys.File
}

// OpenFile implements experimentalsys.FS.
func (o *opened) OpenFile(string, experimentalsys.Oflag, fs.FileMode) (experimentalsys.File, experimentalsys.Errno) {
	return o.file, 0
}

// wasiErrno returns the number that preview 1 has for an error.
func wasiErrno(e experimentalsys.Errno) uint32 {
	switch e {
	case 0:
		return 0
	case experimentalsys.EAGAIN:
		return 6
	case experimentalsys.EBADF:
		return 8
	case experimentalsys.EFAULT:
		return 21
	case experimentalsys.EINVAL:
		return 28
	case experimentalsys.EACCES:
		return 2
	case experimentalsys.EPERM:
		return 63
	}
	return 29 // EIO
}
