package sleep

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/tracee"
)

// TestAbleNamesWhatTheKernelLacks has kernels with and without userfaultfd. Linux 5.15 has no device, and a parameter permits it.
func TestAbleNamesWhatTheKernelLacks(t *testing.T) {
	dir := t.TempDir()
	device, off, on := filepath.Join(dir, "userfaultfd"), filepath.Join(dir, "off"), filepath.Join(dir, "on")
	if err := errors.Join(os.WriteFile(device, nil, 0o600), os.WriteFile(off, []byte("0\n"), 0o600), os.WriteFile(on, []byte("1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(dir, "gone")
	for name, c := range map[string]struct {
		own               error
		device, parameter string
		want              error
	}{
		"6.1":                            {nil, device, off, nil},
		"without the call":               {unix.ENOSYS, device, on, unix.ENOSYS},
		"a filter refuses the call":      {unix.EPERM, device, on, unix.EPERM},
		"5.15":                           {nil, gone, off, tracee.ErrForbidden},
		"5.15 with the parameter":        {nil, gone, on, nil},
		"older, without such parameters": {nil, gone, gone, nil},
	} {
		if err := able(func() error { return c.own }, c.device, c.parameter); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
