package trust

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/turns"
)

var target = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 3}

func named(t *testing.T, s string) reference.Named {
	t.Helper()
	n, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		t.Fatal(err)
	}
	return reference.TagNameOnly(n)
}

func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"r.example/team/app", "r.example/team/app", true},
		{"r.example/team/app", "r.example/team/apps", false},
		{"r.example/team/*", "r.example/team/app", true},
		{"r.example/team/*", "r.example/team/app/sub", false},
		{"r.example/team/**", "r.example/team/app/sub", true},
		{"r.example/team/**", "r.example/team", true},
		{"r.example/**", "r.example.evil/team", false},
		{"*.example/**", "r.example/a", true},
		{"*.example/**", "evil/r.example/a", false},
		{"**/app", "r.example/team/app", true},
		{"**", "docker.io/library/redis", true},
		{"docker.io/library/re*", "docker.io/library/redis", true},
		{"localhost:5000/*", "localhost:5000/a", true},
		{"localhost:5000/*", "localhost:5001/a", false},
		{"127.0.0.1:5555/**", "127.0.0.1:05555/good", true},
		{"localhost:5555/**", "LOCALHOST:5555/good", true},
		{"r.example/**", "R.example:443/good", true},
		{"r.example:443/**", "r.example/good", true},
		{"[::1]:5000/**", "[0:0::1]:5000/good", true},
		{"127.0.0.1:*/**", "127.0.0.1/good", true},
		{"docker.io/**", "registry-1.docker.io/library/redis", true},
		{"127.0.0.1:5555/**", "127.0.0.1:5556/good", false},
	} {
		if err := checkPattern(tt.pattern); err != nil {
			t.Errorf("%s: %v", tt.pattern, err)
		}
		if got := matches(tt.pattern, tt.name); got != tt.want {
			t.Errorf("%s has %s: %v", tt.pattern, tt.name, got)
		}
	}
	for _, bad := range []string{"", "a//b", "/a", "a/", "a/b@sha256:x", "a/b:v1", "a/[", "a/x**", "a b"} {
		if checkPattern(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func gate(t *testing.T, change func(*Config)) *Gate {
	t.Helper()
	cfg := Default()
	change(&cfg)
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return New(cfg, nil, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})))
}

// TestTheFirstRuleCounts, and a rule that rejects needs only the name.
func TestTheFirstRuleCounts(t *testing.T) {
	g := gate(t, func(c *Config) {
		c.Default = Reject
		c.Rules = []Rule{
			{Match: []string{"r.example/bad/*", "r.example/worse/*"}, Verdict: Reject},
			{Match: []string{"r.example/signed/*"}, Verdict: Signed, Keys: []string{"/k"}},
			{Match: []string{"r.example/**"}, Verdict: Accept},
		}
	})
	for name, want := range map[string]string{
		"r.example/worse/a:v1": "worse/* says reject", "r.example/signed/a": "signed", "r.example/a@" + target.Digest.String(): "", "redis": "no rule accepts it",
	} {
		c, err := g.Open("cri", named(t, name))
		if want != "" && want != "signed" {
			if !errors.Is(err, core.ErrImageRefused) || !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if admission, evidence := c.Wants(); admission != (want == "signed") || evidence != admission {
			t.Errorf("%s: asks %v, %v", name, admission, evidence)
		}
	}
}

// verifiers makes a directory of programs by name.
func verifiers(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	// The user nobody must be able to reach them too.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func ask(t *testing.T, change func(*Config)) error {
	t.Helper()
	c, err := gate(t, change).Open("cri", named(t, "r.example/a:v1"))
	if err != nil {
		t.Fatal(err)
	}
	if admission, evidence := c.Wants(); !admission || evidence {
		t.Errorf("asks %v, %v", admission, evidence)
	}
	return c.Admit(t.Context(), Claim{Target: target})
}

func TestVerifiers(t *testing.T) {
	seen := filepath.Join(t.TempDir(), "seen")
	for name, tt := range map[string]struct {
		scripts map[string]string
		max     int
		refused bool
		says    string
	}{
		"all say yes":            {map[string]string{"a": "exit 0", "b": "echo fine"}, 10, false, ""},
		"none":                   {nil, 10, false, ""},
		"one says no":            {map[string]string{"a": "exit 0", "b": "echo too old; echo secret >&2; exit 3"}, 10, true, "the verifier b refuses it (exit status 3): too old"},
		"the one not asked":      {map[string]string{"a": "exit 0", "b": "exit 1"}, 1, false, ""},
		"all are asked":          {map[string]string{"a": "exit 0", "b": "exit 1"}, -1, true, "verifier b"},
		"says much":              {map[string]string{"a": "head -c 200000 /dev/zero | tr '\\0' x; head -c 200000 /dev/zero >&2; exit 1"}, 10, true, "xxx"},
		"reads nothing":          {map[string]string{"a": "exec <&-; exit 0"}, 10, false, ""},
		"lines and colours":      {map[string]string{"a": `printf 'a\033[31m\nb\n'; exit 1`}, 10, true, "a [31m b"},
		"killed":                 {map[string]string{"a": "kill -KILL $$"}, 10, false, "signal: killed"},
		"no program":             {map[string]string{"a": "\n"}, 10, false, ""},
		"leaves a child":         {map[string]string{"a": "sleep 1000 & exit 0"}, 10, false, ""},
		"is told what it is for": {map[string]string{"a": `[ "$*" = "-name r.example/a:v1 -digest ` + target.Digest.String() + ` -stdin-media-type application/vnd.oci.descriptor.v1+json" ] && cat >` + seen}, 10, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask(t, func(c *Config) {
				c.Verifiers, c.MaxVerifiers, c.VerifierTimeout = verifiers(t, tt.scripts), tt.max, Duration(time.Minute)
			})
			if errors.Is(err, core.ErrImageRefused) != tt.refused || (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v; want refused %v, %q", err, tt.refused, tt.says)
			}
			if err != nil && (len(err.Error()) > 2*maxReason || strings.ContainsAny(err.Error(), "\n\x1b")) {
				t.Errorf("%d bytes: %q", len(err.Error()), err)
			}
		})
	}
	got, err := os.ReadFile(seen)
	if want := fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":3}`, target.MediaType, target.Digest); err != nil || string(got) != want {
		t.Errorf("a verifier read %q, %v", got, err)
	}
}

// TestAVerifierThatTakesTooLongIsKilled, together with the processes that it has started.
func TestAVerifierThatTakesTooLongIsKilled(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	err := ask(t, func(c *Config) {
		c.Verifiers, c.VerifierTimeout = verifiers(t, map[string]string{"a": "sleep 1000 & echo $! >" + pipe + "; wait"}), Duration(300*time.Millisecond)
	})
	if !errdefs.IsUnavailable(err) || errors.Is(err, core.ErrImageRefused) || !strings.Contains(err.Error(), "longer than 300ms") {
		t.Errorf("%v", err)
	}
}

func TestWhatCannotBeRunAdmitsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("exit 0"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verifiers := range []string{dir, filepath.Join(dir, "a")} {
		if err := ask(t, func(c *Config) { c.Verifiers = verifiers }); !errdefs.IsFailedPrecondition(err) || errors.Is(err, core.ErrImageRefused) {
			t.Errorf("%s: %v", verifiers, err)
		}
	}
	if err := ask(t, func(c *Config) { c.Verifiers = filepath.Join(dir, "absent") }); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestSignaturesAreAskedAbout, with the files as they are at that time.
func TestSignaturesAreAskedAbout(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "k.pub")
	c, err := gate(t, func(c *Config) {
		c.Rules = []Rule{{Match: []string{"**"}, Verdict: Signed, Keys: []string{key}}}
		c.SignatureProgram = filepath.Join(verifiers(t, map[string]string{"v": `grep -q '"keys":\["S0VZ"\]' || exit 1; cat; exit 0`}), "v")
	}).Open("cri", named(t, "r.example/a"))
	if err != nil {
		t.Fatal(err)
	}
	claim := Claim{Target: target}
	if err := c.Admit(t.Context(), claim); !errors.Is(err, core.ErrImageRefused) || !strings.Contains(err.Error(), "no signature") {
		t.Errorf("unsigned: %v", err)
	}
	claim.Evidence.Simple, claim.Evidence.Skipped = []Simple{{}}, 7
	if err := c.Admit(t.Context(), claim); errors.Is(err, core.ErrImageRefused) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without the key's file: %v", err)
	}
	for text, refused := range map[string]bool{"ANOTHER": true, "KEY": false} {
		if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := c.Admit(t.Context(), claim)
		if errors.Is(err, core.ErrImageRefused) != refused || refused && !strings.Contains(err.Error(), "7 more") || !refused && err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestProblemsAreSaidBeforeAnyPull, and only for rules that need the missing files.
func TestProblemsAreSaidBeforeAnyPull(t *testing.T) {
	here := filepath.Join(t.TempDir(), "k.pub")
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, rules := range map[string][]Rule{
		"": {{Match: []string{"a"}, Verdict: Reject}},
		"open /absent: no such file or directory, images.policy.signature_program is not set": {
			{Match: []string{"a"}, Verdict: Signed, Keys: []string{here, "/absent"}},
		},
	} {
		if got := strings.Join(gate(t, func(c *Config) { c.Rules = rules }).Problems(), ", "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// FuzzSimple: other content of repositories is read or refused.
func FuzzSimple(f *testing.F) {
	f.Add([]byte(`{"critical":{"image":{"docker-manifest-digest":"`+target.Digest.String()+`"},"type":"cosign container image signature"}}`),
		`{"SignedEntryTimestamp":"AAAA","Payload":{"body":"eyJraW5kIjoiYSIsImFwaVZlcnNpb24iOiJiIn0=","integratedTime":1,"logIndex":2,"logID":"ab"}}`,
		`{"SignedRFC3161Timestamp":"AAAA"}`)
	f.Fuzz(func(t *testing.T, payload []byte, log, stamp string) {
		if CheckPayload(payload, target.Digest) == nil && !strings.Contains(string(payload), target.Digest.Encoded()[:8]) && !strings.Contains(string(payload), `\u`) {
			t.Errorf("%q is about the image", payload)
		}
		if e, err := ParseLogEntry(log); err == nil && (e.Kind == "" || len(e.Promise) == 0 || len(e.Body) == 0) {
			t.Errorf("%q is %+v", log, e)
		}
		if b, err := ParseTimestamp(stamp); err == nil && len(b) == 0 {
			t.Errorf("%q is empty", stamp)
		}
	})
}

// FuzzPatterns: no valid pattern panics or takes for ever.
func FuzzPatterns(f *testing.F) {
	f.Add("*.example/**", "r.example/a/b")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if checkPattern(pattern) == nil && len(pattern) < 64 && len(name) < 64 {
			matches(pattern, name)
		}
	})
}

// TestVerifyingIsSharedByOwner: of the images of one owner, some are verified at once, and another owner's does not wait for them.
func TestVerifyingIsSharedByOwner(t *testing.T) {
	const slots = 3
	dir := t.TempDir()
	started, end := filepath.Join(dir, "started"), filepath.Join(dir, "end")
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o777} { // for the user nobody
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	g := gate(t, func(c *Config) {
		c.Rules = []Rule{{Match: []string{"**"}, Verdict: Signed, Keys: []string{"/dev/null"}}}
		c.SignatureProgram = filepath.Join(verifiers(t, map[string]string{
			"v": `grep -q "$(printf quick | base64)" && exit 0; mktemp ` + started + `.XXXXXX >/dev/null; while ! [ -e ` + end + ` ]; do sleep 0.1; done`,
		}), "v")
	})
	g.verifying = turns.New(slots, 10)
	admit := func(ctx context.Context, owner core.Owner, name, payload string) error {
		c, err := g.Open(owner, named(t, name))
		if err != nil {
			return err
		}
		return c.Admit(ctx, Claim{Target: target, Evidence: Evidence{Simple: []Simple{{Payload: []byte(payload)}}}})
	}
	var slow sync.WaitGroup
	for i := range 6 {
		slow.Go(func() {
			if err := admit(t.Context(), "cri", fmt.Sprintf("r.example/slow%d", i), "slow"); err != nil {
				t.Error(err)
			}
		})
	}
	count := func() int {
		list, err := filepath.Glob(started + ".*")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	roottest.Eventually(t, "some are verified, and the others wait", func() bool {
		running, waiting := g.verifying.Usage()
		return running+waiting == 6 && count() == running
	})
	if n := count(); n != 1 { // one repository of one registry of one owner each
		t.Errorf("%d images of one registry are verified at once, of %d", n, slots)
	}
	if err := admit(t.Context(), "nomad", "r.example/slow1", "quick"); err != nil {
		t.Errorf("another owner's: %v", err)
	}
	if err := admit(t.Context(), "cri", "other.example/a", "quick"); err != nil {
		t.Errorf("another registry's: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("given up")
	cancel(cause)
	if err := admit(ctx, "cri", "r.example/more", "slow"); !errdefs.IsUnavailable(err) {
		t.Errorf("one that gives up, or too many: %v", err)
	}
	if err := os.WriteFile(end, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	slow.Wait()
	if n := count(); n != 6 {
		t.Errorf("%d were verified", n)
	}
}
