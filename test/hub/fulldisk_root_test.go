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

// hubOnAFullDisk kills a hub with its ext4 out of bytes or inodes, and starts it again. It serves, or it
// says that no space is left; and when there is space again it has all that it had.
func hubOnAFullDisk(t *testing.T, fill func(*testing.T, string)) {
	roottest.Run(t, func(t *testing.T) {
		d := newDisk(t, "-m", "0", "-N", "1024")
		h := nodetest.StartHub(t, "127.0.0.1:4001", "--dir", filepath.Join(d.at, "store"))
		h.Must(stackOf("stack", 1), "apply", "-f", "-")
		want, err := dataOf(h)
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for i := range 5 {
			fill(t, d.at)
			h.Kill()
			fill(t, d.at)
			before := logOf(t, h)
			_, up := h.TryUp()
			now, err := dataOf(h)
			switch log := logOf(t, h)[len(before):]; {
			case up && err == nil:
				if now != want {
					t.Fatalf("start %d: %s, want %s", i, now, want)
				}
			case !strings.Contains(log, unix.ENOSPC.Error()): // one that serves may end at its first write
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
		if now, err := dataOf(h); now != want || err != nil {
			t.Errorf("with space again: %s, %v, want %s", now, err, want)
		}
		h.Must(stackOf("stack", 2), "apply", "-f", "-")
		if v := versionOf(t, h, "stack_web"); v != 2 {
			t.Errorf("a declaration with space again: version %d", v)
		}
		t.Logf("5 starts on a full disk, %d of them refused", refused)
	})
}

// dataOf returns the token and the services of a hub.
func dataOf(h *nodetest.Hub) (string, error) {
	token, err := h.CLI("", "token")
	if err != nil {
		return "", err
	}
	services, err := h.CLI("", "services", "--json")
	return token + services, err
}

func logOf(t *testing.T, h *nodetest.Hub) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(h.Dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
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
