package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/trust"
	"github.com/longshore/longshore/internal/image/worker"
)

// traitor is a worker that an attacker has taken over.
type traitor struct{ asks, brings digest.Digest }

func (w traitor) Pull(ctx context.Context, agent worker.Agent, _ worker.PullJob) (worker.Image, error) {
	if w.asks != "" {
		// It ignores the answer.
		_ = agent.Admit(ctx, trust.Claim{Target: ocispec.Descriptor{Digest: w.asks}})
	}
	return worker.Image{Target: ocispec.Descriptor{Digest: w.brings}, Manifest: ocispec.Descriptor{Digest: w.brings}}, nil
}

func (traitor) Import(context.Context, worker.Agent, io.Reader) ([]worker.Image, error) {
	return nil, nil
}

func (traitor) Push(context.Context, worker.Agent, worker.PushJob) error {
	return errors.New("not asked")
}
func (traitor) Confinement() string { return "" }
func (traitor) Close() error        { return nil }

// TestAnArchiveProvesNothing: a node with an image policy does not read somebody's archive.
func TestAnArchiveProvesNothing(t *testing.T) {
	for name, p := range map[string]trust.Config{
		"a default": {Default: trust.Reject, Rules: []trust.Rule{{Match: []string{"docker.io/library/*"}, Verdict: trust.Accept}}},
		"a rule":    {Default: trust.Accept, Rules: []trust.Rule{{Match: []string{"elsewhere.example/*"}, Verdict: trust.Reject}}},
		"a program": {Default: trust.Accept, Verifiers: t.TempDir(), MaxVerifiers: -1},
	} {
		cfg := Default()
		p.VerifierTimeout = cfg.Policy.VerifierTimeout
		cfg.Policy = p
		s, err := New(Options{Root: t.TempDir(), Config: cfg, InProcess: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if _, err := s.Import(t.Context(), core.OwnerNomad, unread{t}, core.ImportOptions{Only: "one:v1"}); !errors.Is(err, core.ErrImageRefused) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
}

// unread is an archive that must not be read.
type unread struct{ t *testing.T }

// Read implements io.Reader.
func (u unread) Read([]byte) (int, error) {
	u.t.Error("the archive is read")
	return 0, io.EOF
}

// TestTheWorkerIsNotBelieved: an image that it did not ask for, or that was refused, is not stored.
func TestTheWorkerIsNotBelieved(t *testing.T) {
	dir := t.TempDir()
	good, bad := digest.FromString("good"), digest.FromString("bad")
	script := "#!/bin/sh\n[ \"$4\" = " + good.String() + " ]\n"
	if err := os.WriteFile(filepath.Join(dir, "v"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Policy.Verifiers = dir
	s, err := New(Options{Root: t.TempDir(), Config: cfg, InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, tt := range map[string]struct {
		w    traitor
		good bool
	}{
		"asked and true":     {traitor{good, good}, true},
		"brings another":     {traitor{good, bad}, false},
		"heeds no refusal":   {traitor{bad, bad}, false},
		"does not ask":       {traitor{"", good}, false},
		"refused, another's": {traitor{bad, good}, false},
	} {
		s.runner = tt.w
		_, err := s.Pull(t.Context(), "cri", "r.example/"+string(tt.w.brings[7:12])+":v1", core.PullOptions{Always: true})
		if refused := errors.Is(err, core.ErrImageRefused); refused == tt.good {
			t.Errorf("%s: %v", name, err)
		}
		if list, err := s.List(t.Context(), ""); err != nil || !tt.good && len(list) > 1 {
			t.Errorf("%s: kept %v, %v", name, list, err)
		}
	}
}
