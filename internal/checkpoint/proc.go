package checkpoint

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// mountInfo is a line of /proc/PID/mountinfo.
type mountInfo struct {
	id     string
	root   string
	target string
	kind   string
}

// own reports whether CRIU can store a mount: the root, which a restore gets, and file systems that exist in the container only.
func (m *mountInfo) own() bool {
	if m.target == "/" {
		return true
	}
	switch m.kind {
	case "proc", "sysfs", "mqueue", "devpts":
		return true // a part of such a mount is bound from the whole one, which is in the container too
	case "tmpfs":
		return m.root == "/"
	}
	return false
}

// readMounts returns the mounts of a process.
func readMounts(pid int) ([]mountInfo, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	return parseMounts(string(b)), nil
}

func parseMounts(text string) (list []mountInfo) {
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 1 {
			continue
		}
		list = append(list, mountInfo{id: f[0], root: unescape(f[3]), target: unescape(f[4]), kind: g[0]})
	}
	return list
}

// unescape replaces the kernel's octal escapes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// outsideFiles returns the open files of a process that are the container's standard streams.
func outsideFiles(pid int, id core.ID) (list []extFile, err error) {
	mounts, err := readMounts(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has ended: a zombie
	}
	if err != nil {
		return nil, err
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, fd.Name()), &st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: link, Err: err}
		}
		stream := streamOf(link, &st, id)
		if stream == "" {
			continue
		}
		mnt, err := mountID(pid, fd.Name())
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(mounts, func(m mountInfo) bool { return m.id == mnt }) {
			continue
		}
		n, err := strconv.ParseUint(mnt, 10, 32)
		if err != nil {
			return nil, err
		}
		list = append(list, extFile{Name: fmt.Sprintf("file[%x:%x]", n, st.Ino), Stream: stream})
	}
	return list, nil
}

// streamOf returns the stream of an open file: the null device, or the keeper's pipe of the container's main process by its path.
func streamOf(link string, st *unix.Stat_t, id core.ID) string {
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) {
		return "null"
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return ""
	}
	above, name := path.Split(link)
	if path.Base(above) == "main" && path.Base(path.Dir(path.Clean(above))) == string(id) && slices.Contains([]string{"stdin", "stdout", "stderr"}, name) {
		return name
	}
	return ""
}

// mountID returns the mount of an open file.
func mountID(pid int, fd string) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("no mount of descriptor %s of process %d", fd, pid)
}

// connected returns the local addresses of the TCP connections of processes in one network namespace, without those on loopback.
func connected(pids []int) ([]string, error) {
	sockets := map[string]bool{}
	var from []byte
	for _, pid := range pids {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if errors.Is(err, fs.ErrNotExist) || len(fds) == 0 && err == nil {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
			if inode, ok := strings.CutPrefix(link, "socket:["); ok {
				sockets[strings.TrimSuffix(inode, "]")] = true
			}
		}
		if len(sockets) == 0 || len(from) > 0 {
			continue
		}
		for _, table := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			from = append(from, b...)
		}
	}
	var list []string
	for line := range strings.Lines(string(from)) {
		if a, ok := connection(line, sockets); ok && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	slices.Sort(list)
	return list, nil
}

// connection returns the local address in a line of /proc/net/tcp or tcp6, if it is a connection of one of the sockets.
func connection(line string, sockets map[string]bool) (string, bool) {
	f := strings.Fields(line)
	const listening = "0A"
	if len(f) < 10 || !sockets[f[9]] || f[3] == listening {
		return "", false
	}
	text, _, _ := strings.Cut(f[1], ":")
	b, err := hex.DecodeString(text)
	if err != nil || len(b)%4 != 0 {
		return "", false
	}
	for word := range slices.Chunk(b, 4) { // each is a number in the order of the machine
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	a, ok := netip.AddrFromSlice(b)
	if a = a.Unmap(); !ok || a.IsLoopback() {
		return "", false
	}
	return a.String(), true
}
