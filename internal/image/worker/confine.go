package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/moby/sys/userns"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// keptCaps are what unpacking a layer as root needs: any owner and mode, device
// nodes, file capabilities, and trusted.* xattrs (CAP_SYS_ADMIN; what else that
// one opens is closed by the seccomp filter).
func keptCaps() []uint {
	return []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD, unix.CAP_SETFCAP, unix.CAP_SYS_ADMIN}
}

// Confine takes from this process, for good, everything but the image directory
// root, reading the registry configs in hostDirs, and the network. It says what
// of that the kernel took upon itself.
func Confine(root string, hostDirs []string) (string, error) {
	userns.RunningInUserNS() // reads /proc once and remembers
	if err := psxCall("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return "", err
	}
	files, err := restrictFiles(root, hostDirs)
	if err != nil {
		return "", err
	}
	caps, err := dropCapabilities()
	if err != nil {
		return "", err
	}
	calls, err := filterCalls()
	if err != nil {
		return "", err
	}
	return strings.Join([]string{files, calls, caps, "no new privileges"}, ", "), nil
}

// LandlockABI is the version of Landlock that this kernel has, 0 for none.
func LandlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

func restrictFiles(root string, hostDirs []string) (string, error) {
	abi := LandlockABI()
	switch abi {
	case 0:
		return "no landlock (the kernel lacks it or it is off)", nil
	case 1: // the content store renames between directories
		return "no landlock (abi 1 forbids renames between directories)", nil
	}
	read := []string{
		"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/gai.conf", "/etc/localtime", "/etc/mime.types",
	}
	dirs := []string{"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"}
	for _, dir := range hostDirs {
		dirs = append(dirs, dir)
		read = append(read, namedFiles(dir)...)
	}
	if f := os.Getenv("SSL_CERT_FILE"); f != "" {
		read = append(read, f)
	}
	if d := os.Getenv("SSL_CERT_DIR"); d != "" {
		dirs = append(dirs, filepath.SplitList(d)...)
	}
	rules := []landlock.Rule{
		landlock.RWDirs(root).WithRefer(),
		landlock.ROFiles(read...).IgnoreIfMissing(),
		landlock.RODirs(dirs...).IgnoreIfMissing(),
	}
	// One ruleset for all: a second one that does not handle renames between
	// directories would forbid them.
	cfg := landlock.Config{HandledAccessFS: landlock.V5.HandledAccessFS, Scoped: landlock.V6.Scoped}
	if err := cfg.BestEffort().Restrict(rules...); err != nil {
		return "", fmt.Errorf("landlock: %w", err)
	}
	return fmt.Sprintf("landlock abi %d", abi), nil
}

// namedFiles lists the files that the hosts.toml below dir name: certificates
// may lie anywhere.
func namedFiles(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "hosts.toml" {
			return nil //nolint:nilerr // what cannot be read is reported by who wants it
		}
		data, err := os.ReadFile(path) //nolint:gosec // the administrator's own directory
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		var doc map[string]any
		if toml.Unmarshal(data, &doc) == nil {
			found = append(found, paths(doc)...)
		}
		return nil
	})
	return found
}

func paths(v any) []string {
	var found []string
	switch v := v.(type) {
	case string:
		if filepath.IsAbs(v) {
			if fi, err := os.Stat(v); err == nil && fi.Mode().IsRegular() {
				found = append(found, v)
			}
		}
	case []any:
		for _, e := range v {
			found = append(found, paths(e)...)
		}
	case map[string]any:
		for _, e := range v {
			found = append(found, paths(e)...)
		}
	}
	return found
}

// dropCapabilities keeps of what this process has only keptCaps, in all
// threads.
func dropCapabilities() (string, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return "", fmt.Errorf("read capabilities: %w", err)
	}
	var keep [2]uint32
	for _, c := range keptCaps() {
		keep[c/32] |= 1 << (c % 32)
	}
	n := 0
	for i := range data {
		data[i].Permitted &= keep[i]
		data[i].Effective = data[i].Permitted
		data[i].Inheritable = 0
		for v := data[i].Permitted; v != 0; v &= v - 1 {
			n++
		}
	}

	if _, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return "", fmt.Errorf("drop capabilities: %w", errno)
	}
	return fmt.Sprintf("%d capabilities", n), nil
}

func psxCall(what string, nr, a, b uintptr) error {
	if _, _, errno := psx.Syscall6(nr, a, b, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("%s: %w", what, errno)
	}
	return nil
}

// filterCalls installs the seccomp filter in all threads.
func filterCalls() (string, error) {
	prog := compileFilter(auditArch, deniedCalls(), allowedFamilies())
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}

	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL:
		return "no seccomp (the kernel lacks it)", nil
	case errno != 0:
		return "", fmt.Errorf("seccomp: %w", errno)
	case r != 0:
		return "", errors.New("seccomp: a thread did not take the filter")
	}
	return "seccomp", nil
}
