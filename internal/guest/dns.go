package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/atomicfile"
)

const (
	resolvConf    = "/etc/resolv.conf"
	ownResolvConf = "/run/kata-containers/sandbox/resolv.conf"
)

// SetDNS mounts a file with lines over the machine's resolv.conf, which may be on a read-only file
// system. It returns the function that reverts this. A machine without such a file stays without.
func (m *Machine) SetDNS(lines []string) (undo func() error, err error) {
	st, err := os.Stat(resolvConf)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("set DNS: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("set DNS: %s is no file", resolvConf)
	}
	if err := os.MkdirAll(filepath.Dir(ownResolvConf), 0o755); err != nil {
		return nil, err
	}
	if err := atomicfile.Replace(ownResolvConf, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		return nil, fmt.Errorf("set DNS: %w", err)
	}
	if err := unix.Mount(ownResolvConf, resolvConf, "", unix.MS_BIND, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("set DNS: mount over %s: %w", resolvConf, err), os.Remove(ownResolvConf))
	}
	return func() error {
		if err := unix.Unmount(resolvConf, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("restore %s: %w", resolvConf, err)
		}
		return os.Remove(ownResolvConf)
	}, nil
}
