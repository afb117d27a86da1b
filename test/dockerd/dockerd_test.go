package dockerd

import "testing"

// TestWhatTheKernelLacks: only a lack of the kernel is a reason to run nothing.
func TestWhatTheKernelLacks(t *testing.T) {
	for log, want := range map[string]string{
		"failed to start daemon: Devices cgroup isn't mounted\n":                          "Devices cgroup isn't mounted",
		"level=info msg=up\nfailed to start daemon: mount x: operation not permitted\n":   "mount x: operation not permitted",
		"failed to start daemon: error initializing graphdriver: no space left\n":         "",
		"level=warning msg=\"Your kernel does not support cgroup memory limit\"\npanic\n": "",
	} {
		if got := lacks(log); got != want {
			t.Errorf("%q: %q", log, got)
		}
	}
}
