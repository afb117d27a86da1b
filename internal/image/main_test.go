package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/trust/sigstore"
)

// TestMain makes the test binary its own image worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == image.WorkerArg {
		os.Exit(image.WorkerMain(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[1] == verifySignature {
		os.Exit(sigstore.Main(os.Stdin, os.Stdout))
	}
	if len(os.Args) == 4 && os.Args[1] == pullForever {
		os.Exit(pullUntilKilled(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// waitLock waits until nobody else has the lock on f, and closes it.
func waitLock(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
