package basens

import (
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestApartFromAnyProcessor: wherever the agent's own mount namespace was made,
// it can pin another.
func TestApartFromAnyProcessor(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var allowed unix.CPUSet
		if err := unix.SchedGetaffinity(0, &allowed); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for i := range 8 * runtime.NumCPU() {
			cpu := i % runtime.NumCPU()
			if !allowed.IsSet(cpu) {
				continue
			}
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends
				done <- pinFromNamespaceOf(cpu, filepath.Join(dir, strconv.Itoa(i)))
			}()
			if err := <-done; err != nil {
				t.Errorf("from a mount namespace made on processor %d: %v", cpu, err)
			}
		}
	})
}

// pinFromNamespaceOf moves the calling thread into a mount namespace made on
// that processor.
func pinFromNamespaceOf(cpu int, dir string) error {
	var one, all unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	_, _, err := Keep(dir, []string{"cpu,cpuacct", "pids"})
	return err
}
