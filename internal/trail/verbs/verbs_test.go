package verbs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/caller"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/trail"
)

// TestLinesOfVerbs: a verb has a line with its caller and outcome, its call has no further one, and a call without a verb has one.
func TestLinesOfVerbs(t *testing.T) {
	dir := t.TempDir()
	l, err := trail.Open(trail.Options{Dir: dir, Bytes: 1 << 20, Files: 3, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := Policy{Log: l}
	ctx := caller.With(context.Background(), caller.Caller{Face: "control", Call: "Stop", Peer: "uid 7, pid 8"})
	after, err := p.Before(ctx, &core.Operation{Verb: core.VerbStop, Container: &core.Container{Meta: core.Meta{ID: "c1", Key: "web", Owner: core.OwnerCLI}}})
	if err != nil {
		t.Fatal(err)
	}
	after(errors.New("no"))
	l.Call(ctx, &longshorev1.StopRequest{Name: "web"}, nil)
	l.Call(caller.With(ctx, caller.Caller{Face: "control", Call: "PullImage"}), &longshorev1.PullImageRequest{Name: "busybox"}, nil)
	if part, err := p.Before(ctx, &core.Operation{Verb: core.VerbStop, Part: true}); part != nil || err != nil {
		t.Errorf("a part of a removal has a line: %v", err)
	}
	b, _ := os.ReadFile(filepath.Join(dir, "audit.log"))
	for _, want := range []string{
		`"face":"control","call":"Stop","peer":"uid 7, pid 8","verb":"stop","kind":"container","id":"c1","name":"web","owner":"cli","outcome":"failed","error":"no"}`,
		`"face":"control","call":"PullImage","name":"busybox","outcome":"ok"}`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
	if n := strings.Count(string(b), "\n"); n != 3 {
		t.Errorf("%d lines", n)
	}
}
