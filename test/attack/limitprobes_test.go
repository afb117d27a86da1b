package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// limitProbes take resources until they are refused.
func limitProbes() []probe {
	return []probe{
		{name: "take descriptors", run: func([]string) result {
			for n := range 4 << 20 {
				if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
					if errors.Is(err, unix.EMFILE) {
						return is(bounded, "%d descriptors: %v", n, err)
					}
					return is(reached, "%d descriptors: %v", n, err) // ENFILE would be the node's limit
				}
			}
			return is(reached, "four million descriptors")
		}},
		{name: "take memory", run: func([]string) result {
			for i := range 512 {
				b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
				if err != nil {
					return is(bounded, "%d MiB: %v", i, err)
				}
				b[0] = 1
			}
			return is(reached, "512 MiB")
		}},
		{name: "take inodes", run: takeInodes},
		{name: "abstract sockets", run: abstractSockets},
	}
}

func takeInodes(args []string) result {
	dir := filepath.Join(args[0], "inodes")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return answered("mkdir "+dir, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for n := range 2 << 20 {
		f, err := os.OpenFile(fmt.Sprintf("%s/%d", dir, n), os.O_CREATE|os.O_WRONLY, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return is(bounded, "%d files: %v", n, err)
		}
		if err != nil {
			return answered("create", err)
		}
		_ = f.Close()
	}
	return is(reached, "two million files")
}

// abstractSockets connects to every socket of the node in the abstract namespace, which
// has no permissions.
func abstractSockets([]string) result {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return is(unmade, "%v", err)
	}
	all, tried, silent := 0, 0, 0
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 6 {
			all++
		}
		if len(f) < 8 || !strings.HasPrefix(f[7], "@") {
			continue
		}
		tried++
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
			fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
			if err != nil {
				return is(unmade, "%v", err)
			}
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200000})
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: f[7]}); err == nil {
				_, _ = unix.Write(fd, []byte("GET / HTTP/1.1\r\n\r\n"))
				if n, err := unix.Read(fd, make([]byte, 64)); err == nil && n > 0 {
					return is(reached, "%s answered", f[7])
				}
				silent++
			}
			_ = unix.Close(fd)
		}
	}
	if all == 0 {
		return is(unmade, "no sockets are shown")
	}
	return is(refused, "of %d sockets of the node %d are abstract; %d take a connection, and answer nothing", all, tried, silent)
}
