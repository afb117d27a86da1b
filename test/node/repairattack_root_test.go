package node

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRepairIsSafe: a repair is refused while the agent runs, may be killed at any moment and be repeated; and
// neither foreign files, nor other things in the places of files, nor the files of an earlier release keep the
// agent from knowing all that it knew.
//
// It runs with LONGSHORE_DAMAGES only.
func TestRepairIsSafe(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if os.Getenv("LONGSHORE_DAMAGES") == "" {
			t.Skip("it is one of make damages")
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		d := &doublyDamaged{damaged: newDamaged(t), r: rand.New(rand.NewPCG(seed, 0))}
		repair := []string{"repair", "--root", d.n.Root, "--state", d.n.State}
		knowsAll := func(when string) {
			t.Helper()
			if now := d.sight(t); now != d.before {
				t.Errorf("%s the node knows\n%s\nand knew before\n%s", when, now, d.before)
			}
		}
		all := []string{d.find(t, "live.db"), d.find(t, "durable.db"), d.find(t, "names.db")}

		for _, args := range [][]string{repair, append(repair, "--dry-run")} {
			if out, err := d.n.CLI(args...); err == nil || !strings.Contains(out+err.Error(), "agent") {
				t.Errorf("beside the agent: %v\n%s", err, out)
			}
		}
		knowsAll("after a refused repair")

		// The files of a release without copies and checksums.
		d.n.Kill()
		for _, f := range append(all, d.find(t, "volume.json")) {
			if err := os.Remove(f + ".copy"); err != nil {
				t.Fatal(err)
			}
		}
		mark := d.find(t, "boot")
		boot, err := os.ReadFile(mark)
		if err != nil {
			t.Fatal(err)
		}
		id, _, _ := strings.Cut(string(boot), " ")
		if err := os.WriteFile(mark, []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if said := d.cli(t, repair...); strings.Contains(said, "damaged:") {
			t.Errorf("of an earlier release:\n%s", said)
		}
		d.n.Up()
		knowsAll("after an earlier release")

		// Others' files, everywhere.
		d.n.Kill()
		var dirs []string
		for _, top := range []string{d.n.Root, d.n.State} {
			_ = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
				switch {
				case err != nil || !e.IsDir():
					return nil //nolint:nilerr // it went with the agent
				case e.Name() == "rootfs" || e.Name() == "ns" || e.Name() == "merged" || contents.MatchString(path+"/"):
					return filepath.SkipDir
				}
				dirs = append(dirs, path)
				return nil
			})
		}
		var foreign []string
		for _, dir := range dirs {
			f := filepath.Join(dir, "lost+found")
			if err := os.Mkdir(f, 0o755); err != nil {
				t.Fatal(err)
			}
			g := filepath.Join(dir, ".nfs000000000000")
			if err := os.WriteFile(g, []byte("foreign"), 0o644); err != nil {
				t.Fatal(err)
			}
			foreign = append(foreign, f, g)
		}
		d.n.Up()
		now := d.sight(t)
		d.n.Kill()
		for _, f := range foreign {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		d.n.Up()
		if clean := func(s string) string { return withoutLine(s, "[check]") }; clean(now) != clean(d.before) { // it may tell of them
			t.Errorf("beside foreign files the node knows\n%s\nand knew before\n%s", now, d.before)
		}
		knowsAll("after foreign files")

		// Something else in a file's place.
		volume := d.find(t, "volume.json")
		replaced := append(slices.Clone(all), all[0]+".copy", all[1]+".copy", all[2]+".copy", d.find(t, "events.log"), d.find(t, "boot"), volume, volume+".copy")
		for name, create := range map[string]func(string) error{
			"directory": func(p string) error { return os.MkdirAll(filepath.Join(p, "x"), 0o700) },
			"fifo":      func(p string) error { return syscall.Mkfifo(p, 0o600) },
			"loop":      func(p string) error { return os.Symlink(filepath.Base(p), p) },
			"nowhere":   func(p string) error { return os.Symlink("nowhere", p) },
		} {
			for _, f := range replaced {
				d.n.Kill()
				if err := errors.Join(os.RemoveAll(f), create(f)); err != nil {
					t.Fatal(err)
				}
				logged := d.logSize(t)
				d.n.Launch()
				if !d.serves(t) {
					t.Fatalf("with a %s in the place of %s the agent does not start:\n%s", name, f, d.logFrom(t, logged))
				}
				knowsAll("with a " + name + " in the place of " + f)
			}
		}

		// A repair that is killed again and again.
		d.n.Kill()
		before := map[string][]byte{}
		for _, file := range all {
			for _, f := range []string{file, file + ".copy"} {
				body, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				before[f] = body
			}
		}
		for range 20 {
			for _, f := range all { // the copy is sound, so that all can come back
				if err := errors.Join(os.WriteFile(f, before[f][:len(before[f])/2], 0o600), os.WriteFile(f+".copy", before[f+".copy"], 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(nodetest.Bin(t), "longshore"), repair...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			nodetest.Pause(d.r.IntN(100))
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		d.cli(t, repair...)
		if said := d.cli(t, repair...); strings.Contains(said, "damaged:") {
			t.Errorf("a second repair:\n%s", said)
		}
		d.n.Up()
		knowsAll("after repairs that were killed")
		for _, args := range [][]string{{"rm", "-f", "web", "ended", "named", "checked", "made"}, {"network", "rm", "app"}, {"rmi", "made:1"}, {"volume", "rm", "data"}} {
			d.cli(t, args...)
		}
		d.pod.Remove(t)
		clean(t, d.n)
	})
}

// withoutLine removes the lines of a sight that begin so.
func withoutLine(sight, prefix string) string {
	var kept []string
	for line := range strings.SplitSeq(sight, "\n") {
		if !strings.HasPrefix(line, prefix) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
