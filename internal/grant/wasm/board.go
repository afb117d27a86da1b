package wasm

import (
	"context"
	"errors"
	"os"
	"time"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant"
	programs "github.com/longshore/longshore/program"
)

// boardTime bounds a request to the board, which answers at once.
const boardTime = 10 * time.Second

// service is a handle on the board. Opening it connects, or starts a server; sock_accept takes the server's
// connections.
type service struct {
	number int
	serves bool
	handle *programs.Handle
}

// newService makes a service of a descriptor, which it leaves open.
func newService(d grant.Descriptor) (service, error) {
	fd, err := duplicate(d.Number)
	if err != nil {
		return service{}, err
	}
	h, err := programs.Open(uintptr(fd))
	return service{d.Number, d.Grant.Kind == grant.Server, h}, err
}

func (s service) open(experimentalsys.Oflag) (experimentalsys.File, experimentalsys.Errno) {
	ctx, cancel := context.WithTimeout(context.Background(), boardTime)
	defer cancel()
	var f *os.File
	var err error
	if s.serves {
		f, err = s.handle.ServeFile(ctx, nil)
	} else {
		f, _, err = s.handle.ConnectFile(ctx, nil)
	}
	if err != nil {
		return nil, errnoOfBoard(err)
	}
	defer func() { _ = f.Close() }()
	fd, err := duplicate(int(f.Fd()))
	if err != nil {
		return nil, errnoOf(err)
	}
	return &socket{fd: fd, listens: s.serves, arrivals: s.serves}, 0
}

func (s service) stat() (sys.Stat_t, experimentalsys.Errno) { return statOf(s.number) }

// errnoOfBoard is a program's error for a refusal: preview 1 has no errors of connections.
func errnoOfBoard(err error) experimentalsys.Errno {
	var e *programs.Error
	if !errors.As(err, &e) {
		return experimentalsys.EIO
	}
	switch e.Code {
	case programs.NoServer:
		return experimentalsys.ENOENT
	case programs.Busy, programs.Full:
		return experimentalsys.EAGAIN
	case programs.NotPermitted:
		return experimentalsys.EPERM
	}
	return experimentalsys.EINVAL
}

// arrival takes the next connection of a server on the board.
func arrival(fd int) (int, error) {
	body, oob := make([]byte, programs.MaxAnswer), make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := unix.Recvmsg(fd, body, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if flags&unix.MSG_CTRUNC != 0 { // this process can open no more: the connection is lost, and the board runs
		return -1, unix.EMFILE
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if n == 0 || err != nil || len(messages) != 1 { // the board has ended
		return -1, unix.EINVAL
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, unix.EINVAL
	}
	return fds[0], nil
}
