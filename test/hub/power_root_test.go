package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// cutsEnv is how often TestAHubsPowerIsCut cuts the power; a few times in CI.
const cutsEnv = "LONGSHORE_HUB_CUTS"

// The request that has ext4 forget at once all that was not written to its disk, its journal
// included.
const (
	ext4Shutdown  = 0x8004587d
	withoutTheLog = 2
)

// disk is an ext4 with power that can be cut.
type disk struct{ image, at string }

func newDisk(t *testing.T, flags ...string) *disk {
	t.Helper()
	dir := t.TempDir()
	d := &disk{filepath.Join(dir, "image"), filepath.Join(dir, "fs")}
	if err := errors.Join(os.Mkdir(d.at, 0o700), os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, 512<<20)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", slices.Concat([]string{"-q", "-F"}, flags, []string{d.image})...).CombinedOutput(); err != nil {
		t.Skipf("no ext4 here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(d.at, unix.MNT_DETACH) })
	d.mount(t)
	return d
}

// mount mounts it; the loop device goes with the mount.
func (d *disk) mount(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "mount", "-n", "-o", "loop,nodev,nosuid", "-t", "ext4", d.image, d.at).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
}

// cut cuts the power: unwritten data is lost.
func (d *disk) cut(t *testing.T) {
	t.Helper()
	f, err := os.Open(d.at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), ext4Shutdown, withoutTheLog); err != nil {
		t.Fatalf("cut the power: %v", err)
	}
}

// versionOf is the version of the image of a service, 0 when there is none.
func versionOf(t *testing.T, h *nodetest.Hub, service string) (version int) {
	t.Helper()
	var list []struct{ Name, Image string }
	if err := json.Unmarshal([]byte(h.Must("", "services", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.Name == service {
			if _, err := fmt.Sscanf(s.Image, "web:%d", &version); err != nil {
				t.Fatal(err)
			}
		}
	}
	return version
}

// TestAHubsPowerIsCut: after cuts in the middle of declarations, which leave only synced data, the hub
// starts each time, and has all that it acknowledged, of each stack the last version or the one that was
// on its way.
func TestAHubsPowerIsCut(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		cuts := 2
		if text := os.Getenv(cutsEnv); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			cuts = n
		}
		d := newDisk(t)
		canary := filepath.Join(d.at, "canary")
		h := nodetest.StartHub(t, "127.0.0.1:4001", "--dir", filepath.Join(d.at, "store"))
		token := h.Must("", "token")
		const writers = 3
		var acknowledged [writers]int
		lost := 0
		for n := range cuts {
			var mu sync.Mutex // guards off
			off := false
			var writing sync.WaitGroup
			news := make(chan struct{}, 1000)
			for i := range writers {
				writing.Go(func() {
					for version := acknowledged[i] + 1; ; version++ {
						_, err := h.CLI(stackOf(fmt.Sprintf("stack%d", i), version), "apply", "-f", "-")
						mu.Lock()
						stopped := off
						mu.Unlock()
						switch {
						case err == nil: // also at the cut: it was acknowledged
							acknowledged[i] = version
							news <- struct{}{}
						case !stopped && strings.Contains(err.Error(), "apply again"): // another one was first
							version--
						case !stopped:
							t.Errorf("cut %d: %v", n, err)
							return
						}
						if stopped {
							return
						}
					}
				})
			}
			for range writers + rand.IntN(5) {
				<-news
			}
			// It is written and not synced: if it exists afterwards, nothing was cut.
			if err := os.WriteFile(canary, fmt.Append(nil, n), 0o600); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			off = true
			mu.Unlock()
			d.cut(t)
			h.Kill()
			writing.Wait()
			roottest.Eventually(t, "nobody has the disk open any more", func() bool { return unix.Unmount(d.at, 0) == nil })
			d.mount(t)
			if data, err := os.ReadFile(canary); err != nil || string(data) != strconv.Itoa(n) {
				lost++
			}
			h.Up()
			if now := h.Must("", "token"); now != token {
				t.Fatalf("cut %d: the hub is another one", n)
			}
			for i := range writers {
				version := versionOf(t, h, fmt.Sprintf("stack%d_web", i))
				if version != acknowledged[i] && version != acknowledged[i]+1 {
					t.Errorf("cut %d: stack %d is of version %d, acknowledged was %d", n, i, version, acknowledged[i])
				}
				acknowledged[i] = version
			}
		}
		if lost < cuts/2 {
			t.Errorf("what was not synced was lost in %d of %d cuts only: the power was not cut", lost, cuts)
		}
		t.Logf("%d cuts, acknowledged at the end: %v; what was not synced was lost %d times", cuts, acknowledged, lost)
	})
}
