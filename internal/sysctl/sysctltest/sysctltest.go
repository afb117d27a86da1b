// Package sysctltest has names of kernel parameters that begin like those of a
// namespace and lead to one of the machine, for tests of what sets parameters.
package sysctltest

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// target is a parameter of the machine that no test harms: how many messages
// the kernel's log takes at once before it holds them back.
const target = "kernel/printk_ratelimit_burst"

// file is where the kernel shows it.
const file = "/proc/sys/" + target

// Escapes are names that lead to the target in one way of reading or another.
func Escapes() []string {
	var names []string
	for _, prefix := range []string{"net", "net/ipv4", "net/ipv4/conf", "net/core", "net/unix", "fs/mqueue"} {
		depth := strings.Count(prefix, "/") + 1
		for _, filler := range []string{"", "./", "/", "ipv4/../"} {
			for more := range 3 {
				slashed := prefix + "/" + filler + strings.Repeat("../", depth+more) + target
				names = append(names, slashed, "/"+slashed, dotted(slashed), "."+dotted(slashed), strings.ReplaceAll(slashed, "/..", "..")+"/")
			}
		}
	}
	return append(names, dotted(target), target, "kernel.shmmax.//.printk_ratelimit_burst", "kernel/../"+target, "net.ipv4/.././/.//.//"+target)
}

func dotted(name string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		default:
			return r
		}
	}, name)
}

// Unchanged fails the test when the machine's value of the target has changed
// by its end, and sets it back.
func Unchanged(t *testing.T) {
	t.Helper()
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		after, err := os.ReadFile(file)
		if err != nil || string(after) != string(before) {
			t.Errorf("the machine's %s was %q and is %q, %v", target, before, after, err)
			if err := os.WriteFile(file, before, 0o644); err != nil {
				t.Error(err)
			}
		}
	})
}

// Value is another than the machine has.
func Value(t *testing.T) string {
	t.Helper()
	now, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(now)) + "1"
}

// Control shows that some of the names work where they are read as the native
// runtime once read them: a dot separates, and what is opened lies anywhere
// below /proc/sys. It opens the target and writes nothing.
func Control(t *testing.T) {
	t.Helper()
	dir, err := unix.Open("/proc/sys", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(dir) }()
	var want, got unix.Stat_t
	if err := unix.Stat(file, &want); err != nil {
		t.Fatal(err)
	}
	reached := 0
	for _, name := range Escapes() {
		if first, _, _ := strings.Cut(name, "."); first != "net" || strings.Contains(name, "..") {
			continue
		}
		fd, err := unix.Openat2(dir, dotted(name), &unix.OpenHow{
			Flags: unix.O_WRONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
		})
		if err != nil {
			continue
		}
		if err := unix.Fstat(fd, &got); err == nil && got.Ino == want.Ino && got.Dev == want.Dev {
			reached++
		}
		_ = unix.Close(fd)
	}
	if reached == 0 {
		t.Error("none of the names leads to a parameter of the machine: they test nothing")
	}
}
