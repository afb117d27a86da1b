package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

func TestMountsOfTheHostAreExternal(t *testing.T) {
	const text = `56 57 0:43 / / rw,relatime - overlay overlay rw
60 56 0:46 / /proc rw,nosuid - proc proc rw
61 56 0:47 / /dev rw,nosuid - tmpfs tmpfs rw
80 60 0:46 /bus /proc/bus ro,nosuid - proc proc rw
84 60 0:39 /blank /proc/acpi ro,nosuid - tmpfs tmpfs rw
69 68 0:35 /a/b /sys/fs/cgroup/cpu ro master:7 - cgroup cgroup rw,cpu
90 56 8:1 /vol\040ume /my\040data rw shared:3 - ext4 /dev/vda rw
broken line
`
	var got []string
	for _, m := range parseMounts(text) {
		if !m.own() {
			got = append(got, m.target)
		}
	}
	if want := []string{"/proc/acpi", "/sys/fs/cgroup/cpu", "/my data"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStreamsAreKnownByTheirFiles(t *testing.T) {
	const id = "0123"
	fifo, null, other := &unix.Stat_t{Mode: unix.S_IFIFO}, &unix.Stat_t{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 3)}, &unix.Stat_t{Mode: unix.S_IFREG}
	for _, c := range []struct {
		link string
		st   *unix.Stat_t
		want string
	}{
		{"/run/keeper/pair-1/io/0123/main/stdout", fifo, "stdout"},
		{"/run/keeper/pair-1/io/0123/main/stdin", fifo, "stdin"},
		{"/run/keeper/pair-1/io/0123/exec/stdout", fifo, ""},
		{"/run/keeper/pair-1/io/4567/main/stdout", fifo, ""},
		{"/run/keeper/pair-1/io/0123/main/stdout", other, ""},
		{"/null", null, "null"},
	} {
		if got := streamOf(c.link, c.st, id); got != c.want {
			t.Errorf("%s: %q, want %q", c.link, got, c.want)
		}
	}
}

func TestAFailureHasTheFirstReasonsOfTheLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "dump.log")
	text := "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: x\n(00.1) Warn  (a.c:1): w\nError (criu/files-reg.c:1790): Can't lookup mount=102\n(00.494) 12: Error (criu/cr-dump.c:1): Dump files failed\n"
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	err := failure("store its processes", log, &core.CommandError{Status: 1})
	if want := "store its processes: CRIU: Can't lookup mount=102; Dump files failed"; !errdefs.IsFailedPrecondition(err) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(log, []byte("Error (criu/page-xfer.c:1): write: No space left on device\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := failure("store", log, errors.New("x")); !errdefs.IsResourceExhausted(err) {
		t.Errorf("%v", err)
	}
}

func TestAnOldProgramIsRefusedInThePath(t *testing.T) {
	dir := t.TempDir()
	write := func(version string) {
		t.Helper()
		if err := os.WriteFile(dir+"/criu", []byte("#!/bin/sh\necho Version: "+version+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	write("3.17.1")
	if err := New(Options{}).Able(t.Context()); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "3.17.1") {
		t.Errorf("3.17.1: %v", err)
	}
	if err := New(Options{Program: dir + "/criu"}).Able(t.Context()); err != nil {
		t.Errorf("3.17.1, named: %v", err)
	}
	write("4.2")
	if err := New(Options{}).Able(t.Context()); err != nil {
		t.Errorf("4.2: %v", err)
	}
	if err := New(Options{Program: dir + "/none"}).Able(t.Context()); !errdefs.IsNotFound(err) {
		t.Errorf("none: %v", err)
	}
}

func FuzzDescription(f *testing.F) {
	f.Add([]byte(`{"version":1,"mounts":[{"name":"m0","target":"/a"}],"files":[{"name":"file[1b:5]","stream":"stdout"}],"Net":"longshore-net"}`))
	f.Add([]byte(`{"version":1,"mounts":[{"name":"../m0","target":"/a"}]}`))
	f.Add([]byte(`{"version":1,"files":[{"name":"file[1b:5] --shell-job","stream":"stdout"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/longshore.json", b, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := (&Checkpointer{}).describe(dir)
		if err != nil {
			return
		}
		for _, m := range d.Mounts {
			if strings.ContainsAny(m.Name, "/.[]:") {
				t.Errorf("mount %q", m.Name)
			}
		}
		for _, file := range d.Files {
			if strings.ContainsAny(file.Name, " /-") || streamFD(file.Stream) == "" {
				t.Errorf("file %q", file.Name)
			}
		}
	})
}
