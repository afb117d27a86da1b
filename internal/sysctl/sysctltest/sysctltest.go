// Package sysctltest has names of kernel parameters that look like those of a namespace and lead
// to parameters of the machine, for tests of code that sets parameters.
package sysctltest

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// target is a parameter of the machine that tests can change without harm: how many kernel log
// messages are printed before the rate limit applies.
const target = "kernel/printk_ratelimit_burst"

// file is the target's path.
const file = "/proc/sys/" + target

// Escapes returns names that lead to the target if they are parsed in some wrong way.
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

// Unchanged fails the test, at its end, if the machine's value of the target has changed, and
// restores the value.
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

// Value returns a value that differs from the machine's.
func Value(t *testing.T) string {
	t.Helper()
	now, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(now)) + "1"
}

// Control shows that some of the names work against a parser like the native runtime's old one:
// dots separate, and any file below /proc/sys may be opened. It opens the target and writes
// nothing.
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
