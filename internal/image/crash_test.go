package image_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// pullForever, as first argument, makes the test binary an agent that pulls, checks out and
// removes an image again and again until it is killed, and prints a line for every step.
const pullForever = "pull-forever"

func pullUntilKilled(dir, ref string) int {
	cfg := image.Default()
	s, err := image.New(image.Options{Root: dir, Config: cfg})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	step := func(what string) { _, _ = os.Stdout.WriteString(what + "\n") }
	ctx := context.Background()                   //nolint:usetesting // not in a test, but in a process of its own
	readOnly := strings.Contains(ref, "artifact") // an artifact is a volume alone
	for i := 0; ; i++ {
		img, err := s.Pull(ctx, "cri", ref, core.PullOptions{Progress: func(p core.PullProgress) { step(p.Status) }})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		step("pulled")
		id := core.ID(fmt.Sprintf("c%d", i))
		if _, err := s.Checkout(ctx, core.CheckoutRequest{Container: id, Image: img.ID, ReadOnly: readOnly}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		step("checked out")
		if err := s.Remove(ctx, "cri", ref); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		step("removed")
		if err := s.Discard(ctx, id); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		step("discarded")
	}
}

// TestKilledAgentLeavesAWholeStore kills the agent at random steps of a pull's life and checks the
// next one's store.
func TestKilledAgentLeavesAWholeStore(t *testing.T) {
	t.Run("image", func(t *testing.T) {
		killedAgent(t, imagetest.NewRegistry(t).Push("team/app", "v1", layered(4, 200_000)), 4)
	})
	t.Run("artifact", func(t *testing.T) {
		killedAgent(t, imagetest.NewRegistry(t).Push("team/artifact", "v1", model().Build()), 1)
	})
}

func killedAgent(t *testing.T, ref string, layers int) {
	t.Helper()
	dir := t.TempDir()
	killedAt := map[string]int{}
	for round := range 12 {
		killedAt[killAt(t, dir, ref, 1+rand.IntN(45))]++
		s := open(t, dir)
		checkStore(t, s, dir, layers)
		if round%3 == 2 { // and the store still works
			img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "check", Image: img.ID, ReadOnly: img.Artifact != ""}); err != nil {
				t.Error(err)
			}
			if err := s.Discard(t.Context(), "check"); err != nil {
				t.Error(err)
			}
			nothingAfterRemove(t, s, ref)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("killed at: %v", killedAt)
}

// killAt runs an agent and kills it at its nth step, which is returned.
func killAt(t *testing.T, dir, ref string, n int) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], pullForever, dir, ref)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	last := ""
	for i := 0; i < n && lines.Scan(); i++ {
		last = lines.Text()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if last == "" {
		t.Fatal("the agent made no step")
	}
	return last
}

// checkStore looks for garbage and for missing content.
func checkStore(t *testing.T, s *image.Store, dir string, ofImage int) {
	t.Helper()
	ids, err := s.Checkouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range list {
		if _, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "whole", Image: img.ID, ReadOnly: img.Artifact != ""}); err != nil {
			t.Errorf("image %s is not whole: %v", img.ID, err)
		}
		if err := s.Discard(t.Context(), "whole"); err != nil {
			t.Error(err)
		}
	}
	for _, id := range ids {
		if !strings.HasPrefix(string(id), "c") {
			t.Errorf("checkout %s", id)
		}
		if err := s.Discard(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Prune(t.Context(), "", func(core.Image) bool { return true }); err != nil {
		t.Fatal(err)
	}
	layers, err := filepath.Glob(filepath.Join(dir, "l/*"))
	if err != nil || (len(list) == 0 && len(layers) > 0) || (len(list) == 1 && len(layers) != ofImage) {
		t.Errorf("%d images with layers %v, %v", len(list), layers, err)
	}
}
