package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newDisk(t *testing.T, sectors int) *disk {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, sectors*sectorSize), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := openDisk(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.close() })
	return d
}

func sector(b byte) []byte { return bytes.Repeat([]byte{b}, sectorSize) }

// content tells each sector of the disk by its first byte.
func content(t *testing.T, d *disk, sectors int) string {
	t.Helper()
	p := make([]byte, sectors*sectorSize)
	if err := d.readAt(p, 0); err != nil {
		t.Fatal(err)
	}
	var s []byte
	for i := 0; i < len(p); i += sectorSize {
		s = append(s, p[i]+'0')
	}
	return string(s)
}

func TestDiskLosesWhatWasNotFlushed(t *testing.T) {
	for _, tc := range []struct {
		loss loss
		want func(string) bool
	}{
		{keepAll, func(s string) bool { return s == "1234" }},
		{loseAll, func(s string) bool { return s == "1200" }},
		{keepFirst, func(s string) bool { return s == "1200" || s == "1230" || s == "1234" }},
		{keepSome, func(s string) bool { return s[:2] == "12" }},
	} {
		seen := map[string]bool{}
		for seed := range uint64(64) {
			d := newDisk(t, 4)
			for i, b := range []byte{1, 2, 3, 4} {
				if err := d.writeAt(sector(b), int64(i)*sectorSize); err != nil {
					t.Fatal(err)
				}
				if i == 1 {
					if err := d.flush(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := content(t, d, 4); got != "1234" {
				t.Fatalf("before the cut the guest reads %s", got)
			}
			n, err := d.settle(tc.loss, rand.New(rand.NewPCG(seed, 1)))
			if err != nil || n != 2 {
				t.Fatalf("settle: %d pending, %v", n, err)
			}
			got := content(t, d, 4)
			if !tc.want(got) {
				t.Errorf("%s left %s", tc.loss, got)
			}
			seen[got] = true
		}
		if want := map[loss]int{keepAll: 1, loseAll: 1, keepFirst: 3, keepSome: 4}[tc.loss]; len(seen) != want {
			t.Errorf("%s left %v, want %d different outcomes", tc.loss, seen, want)
		}
	}
}

func TestDiskReadsItsCacheAndRefusesWhatIsOutside(t *testing.T) {
	d := newDisk(t, 4)
	if err := d.writeAt(append(sector(7), sector(8)...), sectorSize); err != nil {
		t.Fatal(err)
	}
	if err := d.writeAt(sector(9), 2*sectorSize); err != nil {
		t.Fatal(err)
	}
	if got := content(t, d, 4); got != "0790" {
		t.Errorf("read %s", got)
	}
	for _, off := range []int64{-sectorSize, 1, 4 * sectorSize} {
		if d.writeAt(sector(1), off) == nil || d.readAt(sector(1), off) == nil {
			t.Errorf("a request at %d is taken", off)
		}
	}
}

func TestWantedFollowsTheConsole(t *testing.T) {
	w := wanted{}
	for _, line := range []string{
		"has 0", "has 1", "has 2", "has 3", "begin rmi 1", "did rmi 1", "begin rmi 2", "begin rmi 3", "did rmi 3", "begin pull 3",
		"begin run 1001", "did run 1001", "begin rm 1002", "did rm 1002", "begin run 1003", "begin pull 4", "did pull 4", "working", "up kernel=6.1 seconds=3",
	} {
		if err := w.observe(line); err != nil {
			t.Error(err)
		}
	}
	if got := w.String(); got != "+0-1+4+1001-1002" {
		t.Errorf("wanted %s", got)
	}
	back, err := parseWanted(w.String())
	if err != nil || !cmp.Equal(back, w) {
		t.Errorf("parsed back %v, %v", back, err)
	}
	if _, err := parseWanted("nonsense"); err == nil {
		t.Error("nonsense is parsed")
	}
}

func TestTornWritesEndWithAPhysicalSector(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	ends := map[int64]bool{}
	for range 200 {
		w := write{sector: 6, data: make([]byte, 3*physicalSize)}
		ends[(6*sectorSize + int64(len(w.tear(rnd))))] = true
	}
	if want := map[int64]bool{6 * sectorSize: true, physicalSize: true, 2 * physicalSize: true, 3 * physicalSize: true}; !cmp.Equal(ends, want) {
		t.Errorf("torn writes end at %v", ends)
	}
}

func TestPowerGoesAfterSoManyWrites(t *testing.T) {
	d := newDisk(t, 4)
	off := d.cutAfter(2)
	for i := range int64(2) {
		if d.isOff() {
			t.Fatalf("off after %d writes", i)
		}
		if err := d.writeAt(sector(1), i*sectorSize); err != nil {
			t.Fatal(err)
		}
	}
	<-off
	<-d.cutAfter(0) // a second time changes nothing
	if n, err := d.settle(loseAll, rand.New(rand.NewPCG(1, 1))); n != 2 || err != nil {
		t.Errorf("settle: %d pending, %v", n, err)
	}
	if d.isOff() {
		t.Error("still off for the next boot")
	}
	if got := content(t, d, 4); got != "0000" {
		t.Errorf("left %s", got)
	}
}
