package attack

import (
	"errors"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/test/nodetest"
)

// sharedProbes use up resources that programs of one uid share, and the node's name server.
func sharedProbes() []probe {
	return []probe{
		{name: "take inotify", run: func(args []string) result {
			return holding(args[0], unix.EMFILE, func() error {
				_, err := unix.InotifyInit1(unix.IN_CLOEXEC)
				return err
			})
		}},
		{name: "take keys", run: takeKeys},
		{name: "name a keyring", run: nameKeyring},
		{name: "find a key", run: func(args []string) result {
			_, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", args[0], 0)
			if errors.Is(err, unix.ENOKEY) {
				return is(refused, "search: %v", err)
			}
			return answered("search", err)
		}},
		{name: "send descriptors", run: sendDescriptors},
		{name: "flood names", run: floodNames},
	}
}

// holding calls take until it fails with the error end, creates the file ready in a directory, and tries again
// from time to time until the file stop exists there.
func holding(dir string, end unix.Errno, take func() error) result {
	taken, ready := 0, false
	for {
		err := take()
		switch {
		case err == nil:
			taken++
			continue
		case !errors.Is(err, end):
			return answered("take", err)
		case !ready:
			if err := os.WriteFile(dir+"/ready", nil, 0o600); err != nil {
				return is(unmade, "%v", err)
			}
			ready = true
		}
		if _, err := os.Stat(dir + "/stop"); err == nil {
			return is(bounded, "took %d, then %v", taken, end)
		}
		nodetest.Pause(5)
	}
}

// takeKeys adds keys, and makes the first one longer in the end, until their user may have no byte more. The kernel
// removes them with this thread.
func takeKeys(args []string) result {
	runtime.LockOSThread()
	payload := make([]byte, 32000)
	add := func(name string, size int) error {
		_, err := unix.AddKey("user", name, payload[:size], unix.KEY_SPEC_THREAD_KEYRING)
		return err
	}
	first := 1
	if err := add("first", first); err != nil {
		return answered("add_key", err)
	}
	size, n := len(payload), 0
	return holding(args[0], unix.EDQUOT, func() error {
		for ; size > 0; size /= 2 {
			n++
			if err := add(strconv.Itoa(n), size); !errors.Is(err, unix.EDQUOT) {
				return err
			}
		}
		err := add("first", first+1)
		if err == nil {
			first++
		}
		return err
	})
}

// nameKeyring creates a session keyring that all programs may use, with a name and a key.
func nameKeyring(args []string) result {
	runtime.LockOSThread()
	made := false
	return holding(args[0], unix.EEXIST, func() error {
		if made {
			return unix.EEXIST
		}
		id, err := unix.KeyctlJoinSessionKeyring(args[1])
		if err != nil {
			return err
		}
		made = true
		_, err = unix.AddKey("user", args[2], []byte(secretText), id)
		return errors.Join(err, unix.KeyctlSetperm(id, 0x3f3f3f3f))
	})
}

// How many questions the name server answers one sandbox, at most: at once, and per second.
const (
	nameBurst = 4000
	nameRate  = 2000
)

// floodNames asks the name server for a name as fast as it can, for two seconds.
func floodNames(args []string) result {
	conf, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return is(unmade, "%v", err)
	}
	_, rest, _ := strings.Cut(string(conf), "nameserver ")
	server, _, _ := strings.Cut(rest, "\n")
	name, err := dnsmessage.NewName(args[0] + ".")
	if err != nil {
		return is(unmade, "%v", err)
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	question, err := m.Pack()
	if err != nil {
		return is(unmade, "%v", err)
	}
	c, err := net.Dial("udp", net.JoinHostPort(server, "53")) //nolint:noctx // it only binds
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = c.Close() }()
	begin := time.Now()
	const length = 2 * time.Second
	if err := c.SetDeadline(begin.Add(length)); err != nil {
		return is(unmade, "%v", err)
	}
	go func() {
		for {
			if _, err := c.Write(question); errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	answers := 0
	buf := make([]byte, 1500)
	for {
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		var p dnsmessage.Parser
		if h, perr := p.Start(buf[:max(n, 0)]); err != nil || perr != nil || h.RCode != dnsmessage.RCodeSuccess {
			return is(unmade, "an answer of %s: %v, %v, %v", server, h.RCode, err, perr)
		}
		answers++
		allowed := nameBurst + int(time.Since(begin).Seconds()*nameRate)
		if answers > allowed+nameRate {
			return is(reached, "%d answers in %s", answers, time.Since(begin).Round(time.Millisecond))
		}
	}
	if answers < nameRate {
		return is(unmade, "only %d answers in %s", answers, length)
	}
	return is(bounded, "%d answers in %s", answers, length)
}

// inFlight is the number of descriptors that an attacker sends: more than the board's limit in this test, and
// too few to disturb other programs of the machine.
const inFlight = 1000

// sendDescriptors sends descriptors to itself and does not receive them.
func sendDescriptors(args []string) result {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return is(unmade, "%v", err)
	}
	rights := make([]int, 100)
	for i := range rights {
		rights[i] = pair[0]
	}
	sent := 0
	return holding(args[0], unix.ETOOMANYREFS, func() error {
		if sent == inFlight {
			return unix.ETOOMANYREFS // the board gets this error; the attacker's limit is higher
		}
		sent += len(rights)
		return unix.Sendmsg(pair[1], []byte("x"), unix.UnixRights(rights...), nil, unix.MSG_DONTWAIT)
	})
}
