package kernel_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// TestSmallPages: earlier mappings get no huge pages, children may.
func TestSmallPages(t *testing.T) {
	before := thp(t)
	if before == "" {
		t.Skip("a kernel without huge pages")
	}
	b, err := unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	kernel.HugePages(false)
	if thp(t) == before {
		t.Error("huge pages are still allowed")
	}
	kernel.SmallPages()
	if after := thp(t); after != before {
		t.Errorf("for children it is %q, was %q", after, before)
	}
	if flags := mapping(t, uintptr(unsafe.Pointer(&b[0]))); !strings.Contains(flags, " nh") {
		t.Errorf("flags of the mapping: %q", flags)
	}
}

func thp(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "THP_enabled:") {
			return line
		}
	}
	return ""
}

// mapping returns the flags of the mapping that holds an address.
func mapping(t *testing.T, at uintptr) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err == nil {
			inside = from <= at && at < to
		}
		if inside && strings.HasPrefix(line, "VmFlags:") {
			return line
		}
	}
	t.Fatal("it is mapped nowhere")
	return ""
}
