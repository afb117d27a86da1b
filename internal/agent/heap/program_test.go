package heap

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProgramPagesAreDropped: pages of the program's file are no longer mapped, but those that the program uses again at once.
func TestProgramPagesAreDropped(t *testing.T) {
	if err := adviseProgram(unix.MADV_POPULATE_READ); err != nil {
		t.Fatal(err)
	}
	before := mapped(t)
	if err := dropProgram(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after > before-512 {
		t.Errorf("%d KiB of the program are mapped, and %d before", after, before)
	}
}

// mapped returns how much of files is mapped and used, in KiB.
func mapped(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(rest, &kib); err != nil || kib == 0 {
		t.Fatalf("no RssFile: %v\n%s", err, status)
	}
	return kib
}
