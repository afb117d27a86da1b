package ports

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Probe binds the port for a moment. FailedPrecondition when a process of this host has it, and
// names the process if it can be found; InvalidArgument when the address is not one of the
// host's.
func Probe(c Claim) error {
	return probed(c, bind(c))
}

// probed is the error of a claim that bind had err for.
func probed(c Claim, err error) error {
	switch {
	case err == nil, unsupported(err):
		return nil
	case errors.Is(err, unix.EADDRINUSE):
		return taken(c, true, fmt.Errorf("claim host port %s: %s listens there: %w", c, holder(c), errdefs.ErrFailedPrecondition))
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("claim host port %s: not an address of this host: %w", c, errdefs.ErrInvalidArgument)
	default:
		return fmt.Errorf("claim host port %s: %w", c, err)
	}
}

// unsupported reports whether the kernel does not have the protocol, so that nobody listens.
func unsupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT)
}

func bind(c Claim) error {
	fd, err := bindSocket(c)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// bindSocket returns a socket that is bound to a port, and listens.
func bindSocket(c Claim) (fd int, err error) {
	ip := c.IP
	if !ip.IsValid() {
		// One socket for both families conflicts with listeners of either.
		fd, err := bindAddr(c, netip.IPv6Unspecified(), false)
		if !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fd, err
		}
		ip = netip.IPv4Unspecified()
	}
	return bindAddr(c, ip, true)
}

func bindAddr(c Claim, ip netip.Addr, v6only bool) (fd int, err error) {
	proto, err := Number(c.Proto)
	if err != nil {
		return -1, err
	}
	family, typ := unix.AF_INET, unix.SOCK_STREAM
	if ip.Is6() {
		family = unix.AF_INET6
	}
	if proto == unix.IPPROTO_UDP {
		typ = unix.SOCK_DGRAM
	}
	if fd, err = unix.Socket(family, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(proto)); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	if ip.Is6() {
		only := 0
		if v6only {
			only = 1
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return fd, err
		}
	}
	if proto == unix.IPPROTO_TCP {
		// Listeners count, connections in TIME_WAIT do not.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fd, err
		}
	}
	if err := unix.Bind(fd, sockaddr(ip, c.Port)); err != nil {
		return fd, err
	}
	if typ == unix.SOCK_STREAM {
		return fd, unix.Listen(fd, 1)
	}
	return fd, nil
}

func sockaddr(ip netip.Addr, port uint16) unix.Sockaddr {
	if ip.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: ip.As4()}
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: ip.As16()}
}

// holder describes the holder of the port, for an error's text.
func holder(c Claim) string {
	if p := Process(c); p != "" {
		return p
	}
	return "a process of the host"
}

// Process describes the process of this host that listens at the port, by its name and pid; "" when
// there is none, or it cannot be found, as with the kernel's own sockets.
func Process(c Claim) string {
	inodes := map[string]bool{}
	for _, suffix := range []string{"", "6"} {
		f, err := os.Open("/proc/thread-self/net/" + c.Proto + suffix)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if port, inode, ok := parseSocketLine(lines.Text(), c.Proto == "tcp"); ok && port == c.Port {
				inodes["socket:["+inode+"]"] = true
			}
		}
		_ = f.Close()
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil || len(inodes) == 0 {
		return ""
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && inodes[target] {
			pid := strings.Split(fd, "/")[2]
			comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			if err != nil {
				break
			}
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), pid)
		}
	}
	return ""
}

// tcpListen is the state of a listening socket in /proc/net/tcp.
const tcpListen = "0A"

// parseSocketLine parses a line of /proc/net/{tcp,udp}[6].
func parseSocketLine(line string, listening bool) (port uint16, inode string, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 || listening && f[3] != tcpListen {
		return 0, "", false
	}
	_, hexPort, found := strings.Cut(f[1], ":")
	raw, err := hex.DecodeString(hexPort)
	if !found || err != nil || len(raw) != 2 {
		return 0, "", false
	}
	if _, err := strconv.ParseUint(f[9], 10, 64); err != nil || f[9] == "0" {
		return 0, "", false
	}
	return uint16(raw[0])<<8 | uint16(raw[1]), f[9], true
}
