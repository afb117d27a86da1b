package pin_test

import (
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/roottest"
)

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// take waits for a spare namespace.
func take(t *testing.T, s *pin.Spare) (f *os.File) {
	t.Helper()
	roottest.Eventually(t, "a spare namespace is there", func() bool {
		f = s.Take()
		return f != nil
	})
	return f
}

// TestSpare: each namespace has one taker, a sandbox or another, and none before.
func TestSpare(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		spare := pin.NewSpare()
		seen := map[uint64]bool{inode(t, "/proc/thread-self/ns/net"): true}
		var held []*os.File // an inode number comes again when its namespace is gone
		once := func(ino uint64) {
			t.Helper()
			if seen[ino] {
				t.Fatal("a network namespace was given twice")
			}
			seen[ino] = true
		}
		for range 5 {
			f := take(t, spare)
			held = append(held, f)
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			once(st.Ino)
		}
		p, err := pin.New(pin.Options{Dir: "/run/ns", Spare: spare})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []core.ID{"sb1", "sb2", "sb3"} {
			paths, err := p.Pin(t.Context(), core.PinRequest{
				Sandbox: id, Kinds: []specs.LinuxNamespaceType{specs.NetworkNamespace}, Sysctls: map[string]string{"net.ipv4.ip_forward": "1"},
			})
			if err != nil {
				t.Fatal(err)
			}
			once(inode(t, paths[specs.NetworkNamespace]))
		}
		if got := inode(t, "/proc/thread-self/ns/net"); !seen[got] {
			t.Error("the process itself went into another network namespace")
		}
		if err := spare.Close(); err != nil {
			t.Error(err)
		}
		if f := spare.Take(); f != nil {
			t.Error("a spare namespace after Close")
		}
		for _, f := range held {
			_ = f.Close()
		}
	})
}
