package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/ledger"
	"github.com/longshore/longshore/internal/sleep/uffd"
)

// leastArea is the least size of an area that is freed. Each area costs a system call of the process. JavaScript's
// heaps have areas of 256 KiB. leastNamed is the least memory that a report names.
const (
	leastArea  = 64 << 10
	leastNamed = 1 << 20
)

// candidates returns the areas of a process that can be freed: private anonymous ones. resident has the bytes
// of other areas, by the reason why they stay.
func candidates(pid int) (areas []uffd.Range, resident map[string]uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return nil, nil, err
	}
	resident = map[string]uint64{}
	var m mapping
	add := func() {
		why := m.stays()
		if why == "" && m.Len < leastArea {
			why = "areas of less than 64 KiB"
		}
		if why != "" {
			resident[why] += max(m.anonymous, m.stored)
		} else {
			areas = append(areas, m.Range)
		}
	}
	for line := range strings.Lines(string(b)) {
		if m.detail(line) {
			continue
		}
		add()
		if m, err = parseMapping(line); err != nil {
			return nil, nil, err
		}
	}
	add()
	for why, bytes := range resident {
		if bytes < leastNamed {
			delete(resident, why)
		}
	}
	return areas, resident, nil
}

// mapping is an entry of smaps.
type mapping struct {
	uffd.Range
	private, writable, file, special bool
	memory                           bool   // it is of no file on a disk
	anonymous                        uint64 // bytes
	stored                           uint64 // bytes of shared or huge pages
	flags                            string
}

// parseMapping parses the first line of an entry.
func parseMapping(line string) (m mapping, err error) {
	var from, to, offset, inode uint64
	var perms, device string
	if _, err := fmt.Sscanf(line, "%x-%x %s %x %s %d", &from, &to, &perms, &offset, &device, &inode); err != nil || len(perms) != 4 || to < from {
		return m, fmt.Errorf("mapping %q: %w", line, err)
	}
	name := ""
	if fields := strings.Fields(line); len(fields) > 5 {
		name = fields[5]
	}
	m.Range = uffd.Range{Addr: from, Len: to - from}
	m.private, m.writable, m.file = perms[3] == 'p', perms[:2] == "rw", inode != 0 || device != "00:00"
	m.memory = !m.private && slices.ContainsFunc([]string{"/dev/zero", "/memfd:", "/SYSV", "/dev/shm/"}, func(of string) bool { return strings.HasPrefix(name, of) })
	m.special = strings.HasPrefix(name, "[") && name != "[heap]" && !strings.HasPrefix(name, "[anon")
	return m, nil
}

// detail reads one of the further lines of an entry.
func (m *mapping) detail(line string) bool {
	key, value, ok := strings.Cut(line, ":")
	if !ok || strings.ContainsAny(key, " -") {
		return false
	}
	switch key {
	case "Anonymous":
		m.anonymous = kib(value)
	case "Rss":
		if m.memory {
			m.stored = kib(value)
		}
	case "Private_Hugetlb", "Shared_Hugetlb":
		m.stored += kib(value)
	case "VmFlags":
		m.flags = value
	}
	return true
}

// kib returns the bytes of a number of kibibytes.
func kib(value string) (n uint64) {
	_, _ = fmt.Sscan(value, &n)
	return n << 10
}

// stays returns the reason why a mapping cannot be freed; "" if it can.
func (m *mapping) stays() string {
	has := func(flag string) bool { return strings.Contains(" "+strings.TrimSpace(m.flags)+" ", " "+flag+" ") }
	switch {
	case m.Len == 0:
		return "nothing"
	case has("ht"):
		return "huge pages (hugetlb)"
	case !m.private:
		return "shared memory"
	case has("lo"):
		return "locked memory"
	case has("um") || has("uw") || has("ui"):
		return "the program's own userfaultfd"
	case has("pf") || has("io"):
		return "memory of a device"
	case m.file:
		return "changed pages of mapped files"
	case m.special:
		return "stacks"
	case !m.writable:
		return "memory without the right to write"
	}
	return ""
}

// pinned returns the reason why no page of a process can be freed, "" if there is none. The kernel or a device may
// write directly to the pages of such a process, also after the process has other pages at these addresses.
func pinned(pid int) (string, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", err
	}
	if bytes.Contains(maps, []byte("/[aio]")) {
		return "asynchronous input and output (io_setup)", nil
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		to, err := os.Readlink(dir + "/" + e.Name())
		if err != nil {
			continue
		}
		if strings.HasPrefix(to, "anon_inode:[io_uring]") {
			return "io_uring", nil
		}
		for _, device := range []string{"/dev/vfio/", "/dev/infiniband/", "/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/kvm"} {
			if strings.HasPrefix(to, device) {
				return "memory of a device (" + to + ")", nil
			}
		}
	}
	return "", nil
}

// The bits of an entry of pagemap.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
)

// runs calls fn for each run of pages of an area that the process has, at most BlockPages at once.
func runs(pagemap *os.File, a uffd.Range, fn func(r uffd.Range) error) error {
	const chunk = 1 << 14
	buf := make([]byte, 8*chunk)
	var run uffd.Range
	flush := func() error {
		r := run
		run = uffd.Range{}
		if r.Len == 0 {
			return nil
		}
		return fn(r)
	}
	for at := a.Addr; at < a.End(); {
		n := min(chunk, (a.End()-at)/ledger.PageSize)
		b := buf[:8*n]
		if _, err := pagemap.ReadAt(b, int64(at/ledger.PageSize*8)); err != nil {
			return fmt.Errorf("read which pages are there: %w", err)
		}
		for i := range n {
			e := binary.LittleEndian.Uint64(b[8*i:])
			addr := at + i*ledger.PageSize
			if e&(pagePresent|pageSwapped) == 0 || e&pageOfFile != 0 {
				continue
			}
			if run.Len > 0 && (run.End() != addr || run.Len == ledger.BlockPages*ledger.PageSize) {
				if err := flush(); err != nil {
					return err
				}
			}
			if run.Len == 0 {
				run.Addr = addr
			}
			run.Len += ledger.PageSize
		}
		at += n * ledger.PageSize
	}
	return flush()
}

// zeroPage is an empty page.
var zeroPage [ledger.PageSize]byte

// gone reports whether err means that a process has ended.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }
