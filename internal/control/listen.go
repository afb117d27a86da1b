package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/invalid"
)

// Config says where the control API listens besides its own socket.
type Config struct {
	// ReadSocket is the path of a second socket, which serves only calls that read; "" is none.
	ReadSocket string `toml:"read_socket"`
	// ReadGroup is the group, by name or number, that may use ReadSocket.
	ReadGroup string `toml:"read_group"`
}

// DefaultConfig has no read socket.
func DefaultConfig() Config { return Config{} }

// Validate refuses a read socket without a group, which nobody but root could use.
func (c Config) Validate() error {
	if c.ReadSocket == "" {
		return nil
	}
	if !filepath.IsAbs(c.ReadSocket) {
		return invalid.Errorf("control.read_socket %q is not an absolute path", c.ReadSocket)
	}
	if c.ReadGroup == "" {
		return invalid.Errorf("control.read_socket is set: name the group that may use it in control.read_group")
	}
	return nil
}

// SocketName and HTTPSocketName are the sockets' names below the state
// directory.
const (
	SocketName     = "control.sock"
	HTTPSocketName = "control-http.sock"
)

// Listen opens the sockets: control.sock and control-http.sock below state, for root alone, and
// the read socket when it is configured. It replaces sockets that an earlier agent has left.
func Listen(ctx context.Context, state string, cfg Config) (Listeners, error) {
	return ListenBeside(ctx, state, cfg, nil)
}

// ListenBeside is Listen with a control socket that systemd, for example, has opened and that is
// not replaced; nil opens our own.
func ListenBeside(ctx context.Context, state string, cfg Config, given net.Listener) (l Listeners, err error) {
	l.Control = given
	if err := cfg.Validate(); err != nil {
		return l, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if given == nil {
		if l.Control, err = ListenUnix(ctx, filepath.Join(state, SocketName), 0o600, -1); err != nil {
			return l, err
		}
	}
	if l.HTTP, err = ListenUnix(ctx, filepath.Join(state, HTTPSocketName), 0o600, -1); err != nil {
		return l, err
	}
	if cfg.ReadSocket == "" {
		return l, nil
	}
	gid, err := groupID(cfg.ReadGroup)
	if err != nil {
		return l, fmt.Errorf("control.read_group: %w", err)
	}
	if strings.HasPrefix(cfg.ReadSocket, filepath.Clean(state)+"/") {
		if err := allowSearch(state, gid); err != nil {
			return l, fmt.Errorf("control.read_socket: %w", err)
		}
	}
	l.Read, err = ListenUnix(ctx, cfg.ReadSocket, 0o660, gid)
	return l, err
}

// allowSearch lets a group search the state directory, which is otherwise closed to all but root, so
// that it can reach a socket there. Everything else in it stays closed to the group.
func allowSearch(state string, gid int) error {
	if err := os.Chown(state, -1, gid); err != nil {
		return err
	}
	return os.Chmod(state, 0o710)
}

// Close closes the listeners that are open; Serve does so too.
func (l Listeners) Close() {
	for _, ln := range []net.Listener{l.Control, l.Read, l.Board, l.HTTP} {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// ListenUnix opens a unix socket with the given mode and group (-1 leaves the group). The socket
// appears at path only when both are set, so that nobody can connect before. On a file system
// without free inodes it reuses that of the old socket at path, which has no server any more.
func ListenUnix(ctx context.Context, path string, mode os.FileMode, gid int) (net.Listener, error) {
	ln, err := handover.Listen(ctx, fmt.Sprintf("%s, mode %o, group %d", path, mode, gid), func() (net.Listener, error) {
		ln, err := listenUnix(ctx, path, mode, gid)
		if errors.Is(err, unix.ENOSPC) && removeSocket(path) {
			ln, err = listenUnix(ctx, path, mode, gid)
		}
		return ln, err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return ln, nil
}

func listenUnix(ctx context.Context, path string, mode os.FileMode, gid int) (net.Listener, error) {
	tmp := filepath.Join(filepath.Dir(path), ".l"+rand.Text()[:10])
	// The kernel makes the socket's file with the mode of the socket.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	ln, err := config.Listen(ctx, "unix", tmp)
	if err != nil {
		return nil, err
	}
	// The socket is renamed from the path at which it was opened; the next agent replaces the
	// final one.
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	if gid >= 0 {
		err = os.Chown(tmp, -1, gid)
	}
	if err == nil {
		err = os.Chmod(tmp, mode)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close(), os.Remove(tmp))
	}
	return ln, nil
}

// removeSocket removes the socket at path and reports whether there was one.
func removeSocket(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.Mode()&os.ModeSocket != 0 && os.Remove(path) == nil
}

func groupID(group string) (int, error) {
	if n, err := strconv.Atoi(group); err == nil && n >= 0 {
		return n, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return strconv.Atoi(g.Gid)
}
