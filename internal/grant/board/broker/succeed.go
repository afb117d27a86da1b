package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/weaken"
)

// nextArg is the second argument of a process that continues the work of another one.
const nextArg = "next"

// succeed takes over from the process before, over a socket.
func succeed(before int) (*broker, error) {
	files, confinement, err := prepare()
	if err != nil {
		return nil, err
	}
	weaken.Die(dies, 5)
	b, err := emptyBroker(files, confinement)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(before, false); err != nil {
		return nil, err
	}
	if err := sendMessage(before, message{Reads: yieldNumber}); err != nil {
		return nil, fmt.Errorf("nobody waits for this process: %w", err)
	}
	if err := b.inherit(before); err != nil {
		return nil, err
	}
	weaken.Die(dies, 8)
	return b, unix.Close(before)
}

func sendMessage(to int, m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return unix.Sendmsg(to, body, nil, nil, unix.MSG_NOSIGNAL)
}

// inherit receives everything from the process before, and commits. If that process dies, this one continues with the items that came.
func (b *broker) inherit(before int) error {
	taken := 0
	for {
		n, oobn, flags, err := receive(before, b.buf, b.oob)
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			return fmt.Errorf("receive from the process before: %w", err)
		}
		if err != nil || n == 0 {
			if b.socket == 0 {
				return errors.New("the process before has ended, or the agent, and handed nothing over")
			}
			return nil
		}
		came := descriptors(b.oob[:oobn])
		end, err := b.take(b.buf[:n], came, taken)
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			err = errors.Join(err, errors.New("it is cut off"))
		}
		for _, fd := range came {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		if err != nil {
			return fmt.Errorf("message %d of the process before: %w", taken+1, err)
		}
		if end {
			break
		}
		taken++
		weaken.Die(dies, 6)
	}
	weaken.Die(dies, 7)
	err := sendMessage(before, message{Serves: true})
	if err == nil {
		return nil
	}
	n, _, _, _, rerr := unix.Recvmsg(before, b.buf, nil, unix.MSG_DONTWAIT)
	if rerr == nil && n == 0 || errors.Is(rerr, unix.ECONNRESET) { // it is dead
		return nil
	}
	return fmt.Errorf("the process before continues: %w", err)
}

// take adds an item of the process before. It replaces a descriptor that it keeps by -1. At the end, it compares the number of items.
func (b *broker) take(body []byte, came []int, taken int) (end bool, err error) {
	var i item
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields() // an unknown member would be lost
	if err := d.Decode(&i); err != nil {
		return false, err
	}
	fd := -1
	if len(came) == 1 {
		fd = came[0]
	}
	switch wants := i.Kind != itemEnd && i.Kind != itemContainer; {
	case len(came) > 1 || wants && fd < 0:
		return false, fmt.Errorf("%s with %d descriptors", i.Kind, len(came))
	case i.Kind == itemSocket && b.socket != 0, i.Kind != itemSocket && b.socket == 0:
		return false, fmt.Errorf("%s out of order", i.Kind)
	}
	switch i.Kind {
	case itemEnd:
		if i.Count != taken {
			return false, fmt.Errorf("%d items came, of %d", taken, i.Count)
		}
		return true, nil
	case itemSocket:
		b.setRules(i.Rules)
		b.made = i.Made
		err = b.listen(fd)
	case itemContainer:
		err = b.takeContainer(i.Container, fd)
	case itemHandle, itemServer:
		err = b.takeOf(i, fd)
	default:
		return false, fmt.Errorf("the kind %q is unknown", i.Kind)
	}
	if err == nil && fd >= 0 {
		came[0] = -1
	}
	return false, err
}

// takeContainer adds a container. fd is its process; -1 for one that is not bound.
func (b *broker) takeContainer(id string, fd int) error {
	if b.containers[id] != nil {
		return fmt.Errorf("container %q came twice", id)
	}
	c := &container{id: id, pidfd: fd, handles: map[*handle]bool{}, servers: map[*server]bool{}}
	if fd >= 0 {
		if err := b.add(fd, c, unix.EPOLLIN); err != nil {
			return err
		}
	}
	b.containers[id] = c
	return nil
}

// takeOf adds a handle or a server of a container.
func (b *broker) takeOf(i item, fd int) error {
	c := b.containers[i.Container]
	if c == nil {
		return fmt.Errorf("%s of the unknown container %q", i.Kind, i.Container)
	}
	h, err := board.NewHandle(i.Realm, i.Rights, nil, i.Labels)
	if err != nil {
		return err
	}
	if i.Kind == itemServer {
		return b.holdServer(c, fd, h)
	}
	return b.holdHandle(c, fd, h)
}
