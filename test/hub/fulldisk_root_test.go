package hub

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

func TestAHubWithoutBytes(t *testing.T)  { hubOnAFullDisk(t, takeBytes) }
func TestAHubWithoutInodes(t *testing.T) { hubOnAFullDisk(t, takeInodes) }

// hubOnAFullDisk kills a hub whose ext4 has no byte or no inode left, and starts it again. It serves, or
// it says that no space is left; and when there is space again it has all that it had.
func hubOnAFullDisk(t *testing.T, fill func(*testing.T, string)) {
	roottest.Run(t, func(t *testing.T) {
		d := newDisk(t, "-m", "0", "-N", "1024")
		h := nodetest.StartHub(t, "127.0.0.1:4001", "--dir", filepath.Join(d.at, "store"))
		token := h.Must("", "token")
		h.Must(stackOf("stack", 1), "apply", "-f", "-")
		refused := 0
		for i := range 5 {
			fill(t, d.at)
			h.Kill()
			fill(t, d.at)
			log, up := h.TryUp()
			switch {
			case up:
				if now := h.Must("", "token"); now != token || versionOf(t, h, "stack_web") != 1 {
					t.Fatalf("start %d: token %q, version %d", i, now, versionOf(t, h, "stack_web"))
				}
			case !strings.Contains(log, unix.ENOSPC.Error()):
				t.Fatalf("start %d: the hub does not say why it has ended:\n%s", i, log)
			default:
				refused++
			}
		}
		h.Kill()
		fillers, err := filepath.Glob(filepath.Join(d.at, "fill*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fillers {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		h.Up()
		if now := h.Must("", "token"); now != token || versionOf(t, h, "stack_web") != 1 {
			t.Errorf("with space again: token %q, version %d", now, versionOf(t, h, "stack_web"))
		}
		h.Must(stackOf("stack", 2), "apply", "-f", "-")
		if v := versionOf(t, h, "stack_web"); v != 2 {
			t.Errorf("a declaration with space again: version %d", v)
		}
		t.Logf("5 starts on a full disk, %d of them refused", refused)
	})
}

// takeBytes takes all bytes of a file system, to the last block.
func takeBytes(t *testing.T, at string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(at, "filler"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 4096} {
		for block := make([]byte, size); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

// takeInodes takes all inodes of a file system.
func takeInodes(t *testing.T, at string) {
	t.Helper()
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(at, "fill-"+strconv.Itoa(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
