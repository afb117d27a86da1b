package stdio

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath/beneathtest"
)

// TestExchangesOfADirectory opens, rotates and reopens a sink in a directory that is a link to
// another one every other moment. In that nothing may be made, renamed or removed; a sink that
// trusts its whole path does so.
func TestExchangesOfADirectory(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	if err := os.Mkdir(base+"/logs", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, base+"/link"); err != nil {
		t.Fatal(err)
	}
	stop := beneathtest.Exchange(t, base+"/logs", base+"/link")
	try := func(below string, numbered bool) (opened, reached int) {
		k := NewSink()
		k.Path, k.Below, k.MaxFiles, k.Numbered = base+"/logs/out.0", below, 3, numbered
		if k.Open() == nil {
			opened++
			k.rotate()
			_ = k.Reopen()
			k.Close()
		}
		left, err := os.ReadDir(outside)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range left {
			reached++
			if err := os.Remove(filepath.Join(outside, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		return opened, reached
	}
	rounds := beneathtest.Rounds(t) * 10
	var opened, reached, controls int
	// A single exchanger that gets no processor leaves the link in place for long.
	for i := 0; i < rounds || opened == 0 && i < 100*rounds; i++ {
		o, r := try(base, i%2 == 0)
		opened, reached = opened+o, reached+r
	}
	for i := 0; i < 100*rounds && controls == 0; i++ {
		_, r := try("", i%2 == 0)
		controls += r
	}
	times := stop()
	t.Logf("%d exchanges; %d rounds, opened %d, reached %d; reached %d without a trusted directory", times, rounds, opened, reached, controls)
	if reached > 0 || opened == 0 || controls == 0 {
		t.Error("the other directory was reached, or the attack shows nothing")
	}
}

// TestBelowADirectory: a sink's files are below its trusted directory, through no
// link, also where a directory has become one since they were opened.
func TestBelowADirectory(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(base+"/a/logs", 0o755); err != nil {
		t.Fatal(err)
	}
	k := NewSink()
	k.Path, k.Below, k.MaxFiles = base+"/a/logs/out", base, 2
	if err := k.Open(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(base+"/a", base+"/was"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, base+"/a"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(outside+"/logs", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := k.Reopen(); err != unix.ELOOP || k.fd < 0 { //nolint:errorlint // a bare errno
		t.Errorf("opened again: %v, descriptor %d", err, k.fd)
	}
	k.rotate()
	k.Close()
	if err := k.Open(); err != unix.ELOOP { //nolint:errorlint // a bare errno
		t.Errorf("opened: %v", err)
	}
	if left, err := os.ReadDir(outside + "/logs"); err != nil || len(left) > 0 {
		t.Errorf("outside: %v, %v", left, err)
	}
	if k.Path = base + "/../x"; k.Open() != unix.EXDEV { //nolint:errorlint // a bare errno
		t.Error("a path that leaves the directory was opened")
	}
}
