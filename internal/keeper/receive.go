package keeper

import (
	"errors"
	"fmt"
	"net"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// frame is a received frame: the message and its id.
type frame struct {
	reply
	id uint64
}

// receive waits for a frame. It has no buffer while it waits.
func receive(conn *net.UnixConn) (f frame, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return frame{}, err
	}
	if waiting := raw.Read(func(fd uintptr) bool {
		for f, err = receiveNow(int(fd)); errors.Is(err, unix.EINTR); {
			f, err = receiveNow(int(fd))
		}
		return !errors.Is(err, unix.EAGAIN)
	}); waiting != nil {
		return frame{}, waiting
	}
	return f, err
}

// errShort means that this process can open no descriptors for an answer or for a request. Of an answer,
// the keeper has carried out the request.
var errShort = fmt.Errorf("keeper: this process has no descriptors left for a request or its answer: %w: %w", unix.EMFILE, errdefs.ErrResourceExhausted)

// receiveNow receives a frame that has come; EAGAIN if none has.
func receiveNow(fd int) (frame, error) {
	// Most frames are a few hundred bytes; the longest has 32 KB.
	long, _, err := unix.Recvfrom(fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	switch {
	case err != nil:
		return frame{}, err
	case long == 0:
		return frame{}, net.ErrClosed
	}
	buf := make([]byte, min(long, wire.MaxFrame))
	oob := make([]byte, unix.CmsgSpace(4*16))
	n, on, flags, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return frame{}, err
	}
	var fds descriptors
	if cs, err := unix.ParseSocketControlMessage(oob[:on]); err == nil {
		for i := range cs {
			if f, err := unix.ParseUnixRights(&cs[i]); err == nil {
				fds = append(fds, f...)
			}
		}
	}
	h, inline, ok := wire.ParseHeader(buf[:n])
	if ok && h.Kind == wire.KindCopy && h.Flags == 0 && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == unix.MSG_CTRUNC {
		// This process can open no more descriptors. Without the copy only redundancy is lost.
		fds.close()
		return frame{reply{kind: h.Kind, body: inline}, h.ID}, nil
	}
	if ok && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == unix.MSG_CTRUNC && h.Kind != wire.KindExitEvent {
		// As above. The one request has failed, and the connection is intact. The body stays, unless it
		// is in a memory file.
		fds.close()
		if h.Flags != 0 {
			inline = nil
		}
		return frame{reply{kind: h.Kind, body: inline, err: errShort}, h.ID}, nil
	}
	if !ok || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		fds.close()
		return frame{}, fmt.Errorf("keeper: cannot decode a frame: %w", errdefs.ErrDataLoss)
	}
	body, rest, err := kernel.Body(h, inline, fds)
	if err != nil {
		return frame{}, err
	}
	return frame{reply{kind: h.Kind, body: body, fds: rest}, h.ID}, nil
}
