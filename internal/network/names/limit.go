package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/weaken"
)

// holds reports whether a filter by o is one by r.
func (r *Restriction) holds(o Restriction) bool {
	return (r.Built == 0 || r.Built == o.Built) && slices.Equal(r.List, o.List) && slices.Equal(r.Cluster, o.Cluster) && r.Learn == o.Learn
}

// JournalFile returns the path of a sandbox's egress log. dir is Options.Journals.
func JournalFile(dir string, id core.ID) string { return filepath.Join(dir, string(id)) }

// limitLocked sends the process the descriptors that a restricted sandbox needs: a netlink socket for its rules, one for their
// reports, and its log. Preconditions: c.mu is held.
func limitLocked(c *Client, b Box) error {
	if b.Egress == nil {
		return nil
	}
	var rules *os.File
	err := within(b.Namespace, func() (err error) {
		if rules, err = netfilter(0); err != nil || c.reports[b.Sandbox] != nil {
			return err
		}
		reports, err := netfilter(unix.SOCK_NONBLOCK)
		if err == nil {
			if err = bindReports(reports); err != nil {
				_ = reports.Close()
				err = fmt.Errorf("read the reports of connections: %w", err)
			}
		}
		if err == nil {
			c.reports[b.Sandbox] = reports
		}
		return err
	})
	defer func() {
		if rules != nil {
			_ = rules.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.o.Journals, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(JournalFile(c.o.Journals, b.Sandbox), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	_, err = c.callLocked(request{Op: opLimit, Sandbox: b.Sandbox, Egress: b.Egress}, []*os.File{rules, c.reports[b.Sandbox], log})
	if err != nil || !b.Egress.verifies() {
		return err
	}
	return verifyLocked(c, b)
}

// keepReportsLocked asks the process for the socket of a sandbox's reports: no second one can be bound. Preconditions: c.mu is held.
func keepReportsLocked(c *Client, id core.ID) error {
	if c.boxes[id].Egress == nil || c.reports[id] != nil {
		return nil
	}
	_, files, err := c.exchangeLocked(request{Op: opReports, Sandbox: id}, nil, c.patienceLocked())
	if errors.Is(err, errRefused) && !errors.Is(err, errShort) { // it has none
		return nil
	}
	if len(files) == 1 {
		c.reports[id] = files[0]
		return err
	}
	closeAll(files)
	return err
}

// netfilter opens a netlink socket in the namespace of the thread.
func netfilter(flags int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &gateTime)); err != nil {
		return nil, errors.Join(fmt.Errorf("open netfilter: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "netfilter"), nil
}

// reportsSize bounds a message of the kernel with reports.
const reportsSize = 4096

// bindReports makes the socket receive the reports of egress.Group.
func bindReports(socket *os.File) error {
	const (
		config      = unix.NFNL_SUBSYS_ULOG<<8 | 1 // NFULNL_MSG_CONFIG
		attrCommand = 1
		attrMode    = 2
		attrSize    = 3 // of a message with several reports
		attrFlush   = 4 // hundredths of a second
		bind        = 1
		copyPacket  = 2
	)
	body := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, egress.Group)
	body = append(body, attribute(attrCommand, []byte{bind})...)
	body = append(body, attribute(attrMode, append(binary.BigEndian.AppendUint32(nil, 64), copyPacket, 0))...)
	body = append(body, attribute(attrSize, binary.BigEndian.AppendUint32(nil, reportsSize))...)
	body = append(body, attribute(attrFlush, binary.BigEndian.AppendUint32(nil, 1))...)
	g := gate{}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) {
		// The kernel answers before the call returns, so that a socket without waiting finds the answer.
		result = exchange(int(fd), g.messageLocked(nil, config, unix.NLM_F_ACK, body), 1, 1)
	})
	return errors.Join(err, result)
}

// within calls f on a thread that is in a network namespace.
func within(namespace string, f func() error) error {
	ns, err := os.Open(namespace)
	if err != nil {
		return fmt.Errorf("%w: %w", errNamespace, err)
	}
	defer func() { _ = ns.Close() }()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err != nil {
			err = fmt.Errorf("%w: %w", errNamespace, err)
		} else {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// filterOf returns the filter of a restriction in the process. Without files it answers nothing that is to be opened.
func filterOf(w *Restriction, gate opener, log *journal, again bool) (*restricted, error) {
	if w == nil || weaken.Off(weaken.EgressNames) {
		return nil, nil
	}
	r, err := restrict(*w, gate, log)
	if err == nil {
		r.again = again
	}
	return r, err
}

// change applies another list to a box, or none. needs says that the agent must send the files of the list.
func (b *box) change(w *Restriction) (needs bool, err error) {
	b.mu.Lock()
	old := b.limit
	b.mu.Unlock()
	if old == nil || w == nil {
		r, err := filterOf(w, nil, nil, true)
		if err == nil {
			b.limited(r, nil)
		}
		return r != nil, err
	}
	if w.holds(old.wanted) {
		return old.gate == nil, nil
	}
	r, err := filterOf(w, old.gate, old.log, old.again)
	if err != nil {
		return false, err
	}
	b.mu.Lock()
	b.limit = r
	b.mu.Unlock()
	if r.gate == nil {
		return true, nil
	}
	r.takeOver(old)
	b.review()
	return w.verifies(), nil // the rules were made without the redirection
}

// limit gives a box the files of its list.
func (b *box) setLimit(w *Restriction, files []*os.File) error {
	if len(files) != 3 {
		return errors.New("three files are needed")
	}
	r, err := filterOf(w, &gate{socket: files[0]}, newJournal(files[2]), true)
	if err != nil || r == nil {
		closeAll(files)
		return err
	}
	b.mu.Lock()
	old := b.limit
	b.mu.Unlock()
	if old != nil {
		r.again = old.again
	}
	if old != nil && old.log != nil {
		r.log.refused.Store(old.log.refused.Load())
	}
	b.limited(r, files)
	if old != nil && old.gate != nil {
		r.takeOver(old)
	}
	go reports(files[1], r.log)
	b.review()
	return nil
}

// refusals returns the number of names and connections that the list has refused.
func (b *box) refusals() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit == nil || b.limit.log == nil {
		return 0
	}
	return b.limit.log.refused.Load()
}

// reportsSocket returns a duplicate of the socket of the reports.
func (b *box) reportsSocket() (*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.files) != 3 {
		return nil, errors.New("it has no egress list")
	}
	raw, err := b.files[1].SyscallConn()
	if err != nil {
		return nil, err
	}
	dup := -1
	err2 := raw.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dup), "reports"), nil
}
