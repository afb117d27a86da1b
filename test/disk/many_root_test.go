package disk

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// sums checks that each part has at least the bytes of its parts.
func (p *part) sums(t *testing.T) {
	t.Helper()
	var of number
	for _, c := range p.Parts {
		of += c.Bytes
		c.sums(t)
	}
	if of > p.Bytes {
		t.Errorf("%s has %d bytes, and its parts %d", p.Name, p.Bytes, of)
	}
}

// TestAFullNode: with 50 images, 100 containers of two owners, volumes and deleted files that are open, the tree has du's sum, and each
// object its bytes.
func TestAFullNode(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cli := func(args ...string) {
			if out, err := n.CLI(args...); err != nil {
				t.Errorf("longshore %s: %s, %v", strings.Join(args, " "), out, err)
			}
		}
		const images, kib = 50, 1 << 10
		cli("pull", image)
		// Two at a time, as many as the smallest machine has processors.
		each := func(fn func(i int)) {
			var work sync.WaitGroup
			for half := range 2 {
				work.Go(func() {
					for i := half; i < images; i += 2 {
						fn(i)
					}
				})
			}
			work.Wait()
		}
		each(func(i int) {
			name := fmt.Sprintf("built%d", i)
			cli("run", "--name", name, image, "sh", "-c", "head -c 300000 /dev/urandom > /f; head -c 100000 /dev/zero | tr '\\0' x")
			cli("commit", name, fmt.Sprintf("made%d:1", i))
		})
		pod := n.RunPod(t, n.PodConfig("pod"))
		const script = "head -c 200000 /dev/urandom > /g; head -c 150000 /dev/urandom > /data/f; head -c 100000 /dev/urandom > /gone; exec 9</gone; rm /gone; exec sleep 1000"
		for i := 0; i < images; i += 10 {
			pod.Run(t, nodetest.ContainerConfig(fmt.Sprintf("app%d", i), image, "/bin/sh", "-c", strings.ReplaceAll(script, "/data/f", "/h")))
		}
		each(func(i int) {
			if i%10 == 0 { // it is in the pod
				return
			}
			cli("run", "-d", "--name", fmt.Sprintf("runs%d", i), "-v", fmt.Sprintf("vol%d:/data", i), fmt.Sprintf("made%d:1", i), "sh", "-c", script)
		})
		if t.Failed() {
			return
		}
		var all, deleted *part
		nodetest.Eventually(t, "each program has deleted its file", func() bool {
			all, deleted = measured(t, n)
			return len(deleted.Parts) >= images && deleted.Bytes >= images*100000
		})
		want := du(t, n.Root)
		t.Logf("the tree has %d bytes, du %.0f; deleted %d in %d files", all.Bytes, want, deleted.Bytes, len(deleted.Parts))
		if float64(all.Bytes) < 0.99*want || float64(all.Bytes) > 1.01*want {
			t.Errorf("the tree has %d bytes, du %.0f", all.Bytes, want)
		}
		all.sums(t)
		for i := range images {
			runs, owner := fmt.Sprintf("runs%d (cli)", i), "(cli)"
			if i%10 == 0 {
				runs, owner = fmt.Sprintf("app%d", i), "(cri)"
			}
			for _, p := range []struct {
				path     []string
				from, to number
			}{
				{[]string{"images", fmt.Sprintf("made%d:1 (cli)", i)}, 300 * kib * 9 / 10, 700 * kib},
				{[]string{"containers", fmt.Sprintf("built%d (cli)", i), "changed files"}, 290 * kib, 400 * kib},
				{[]string{"containers", fmt.Sprintf("built%d (cli)", i), "output"}, 95 * kib, 130 * kib},
				{[]string{"containers", runs, "changed files"}, 190 * kib, 500 * kib},
				{[]string{"volumes", fmt.Sprintf("vol%d (cli)", i)}, 140 * kib, 200 * kib},
			} {
				if p.path[0] == "volumes" && owner == "(cri)" {
					continue
				}
				if got := all.find(p.path...); got == nil || got.Bytes < p.from || got.Bytes > p.to {
					t.Errorf("%q: %+v, want %d to %d bytes", p.path, got, p.from, p.to)
				}
			}
		}
		said := all.Frees
		cli("system", "prune", "--all", "--force")
		nodetest.Eventually(t, "the removed files are gone", func() bool {
			after, _ := measured(t, n)
			freed := int64(all.Bytes) - int64(after.Bytes)
			return freed > int64(said)*9/10 && freed < int64(said)*11/10+1<<20
		})
		n.Check()
	})
}
