package image_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/trust"
)

// verifySignature makes the test binary longshore-verify.
const verifySignature = "verify-signature"

// verifier is the path of a program that the user nobody can reach.
func verifier(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	binary, script := filepath.Join(dir, "test"), filepath.Join(dir, "longshore-verify")
	if err := os.WriteFile(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+binary+" "+verifySignature+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// index is a registry's answer to a query for the referrers of an image.
func index(t *testing.T, refs ...imagetest.Built) imagetest.Built {
	t.Helper()
	doc := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	b := imagetest.Built{Blobs: map[digest.Digest][]byte{}}
	for _, r := range refs {
		doc.Manifests = append(doc.Manifests, r.Manifest)
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	b.Manifest = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	b.Blobs[b.Manifest.Digest] = raw
	return b
}

// policed returns a store with a rule that requires a signature by s.
func policed(t *testing.T, inProcess bool, change func(*trust.Config)) (*image.Store, string) {
	t.Helper()
	cfg := image.Default()
	cfg.Retries = 1
	change(&cfg.Policy)
	dir := t.TempDir()
	return openWith(t, image.Options{Root: dir, Config: cfg, InProcess: inProcess}), dir
}

// nothingStored fails the test when the store has a blob or a layer.
func nothingStored(t *testing.T, s *image.Store, dir string) {
	t.Helper()
	if list, err := s.List(t.Context(), ""); err != nil || len(list) > 0 {
		t.Errorf("images %v, %v", list, err)
	}
	for _, sub := range []string{"content/blobs", "content/ingest", "l"} {
		err := filepath.WalkDir(filepath.Join(dir, sub), func(path string, d fs.DirEntry, err error) error {
			if err == nil && (!d.IsDir() || sub == "l" && filepath.Base(path) != "l") {
				t.Errorf("%s is in the store", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestSignedImages(t *testing.T) {
	t.Run("image", func(t *testing.T) { signedImages(t, layered(2, 1000)) })
	t.Run("artifact", func(t *testing.T) { signedImages(t, model().Build()) })
}

func signedImages(t *testing.T, b imagetest.Built) {
	t.Helper()
	ours, theirs, program := imagetest.NewSigner(t), imagetest.NewSigner(t), verifier(t)
	d := b.Manifest.Digest
	referrer := ours.Bundle(d)
	referrers := index(t, referrer)
	for name, tt := range map[string]struct {
		push      func(*imagetest.Registry)
		referrers *imagetest.Built // nil: the registry lacks the API
		good      bool
	}{
		"cosign's first layout": {push: func(r *imagetest.Registry) { r.Push("team/app", imagetest.SignatureTag(d), ours.Simple(d)) }, good: true},
		"a tag for referrers": {push: func(r *imagetest.Registry) {
			sig := ours.Bundle(d)
			r.Push("team/app", "x", sig)
			r.Push("team/app", imagetest.ReferrersTag(d), index(t, theirs.Simple(d), sig))
		}, good: true},
		"referrers": {push: func(r *imagetest.Registry) { r.Push("team/app", "x", referrer) }, referrers: &referrers, good: true},
		"unsigned":  {push: func(*imagetest.Registry) {}},
		"another's signature": {push: func(r *imagetest.Registry) {
			r.Push("team/app", imagetest.SignatureTag(d), theirs.Simple(d))
			r.Push("team/app", imagetest.ReferrersTag(d), index(t))
		}},
		"a signature on another image": {push: func(r *imagetest.Registry) {
			r.Push("team/app", imagetest.SignatureTag(d), ours.Simple(digest.FromString("x")))
		}},
		"nonsense": {push: func(r *imagetest.Registry) {
			r.Push("team/app", imagetest.SignatureTag(d), imagetest.Manifest(t, "", ocispec.Descriptor{MediaType: "application/vnd.dev.sigstore.bundle"}, []byte("]")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			reg := imagetest.NewRegistry(t)
			ref := reg.Push("team/app", "v1", b)
			tt.push(reg)
			if tt.referrers != nil {
				reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if strings.HasSuffix(r.URL.Path, "/referrers/"+d.String()) {
						w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
						_, _ = w.Write(tt.referrers.Blobs[tt.referrers.Manifest.Digest])
						return
					}
					next.ServeHTTP(w, r)
				})
			}
			s, dir := policed(t, false, func(c *trust.Config) {
				c.SignatureProgram = program
				c.Rules = []trust.Rule{{Match: []string{reg.Host + "/team/*"}, Verdict: trust.Signed, Keys: []string{ours.File()}}}
			})
			img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			if tt.good {
				if err != nil || img.Digest != d {
					t.Errorf("%v, %v", img, err)
				}
				return
			}
			if !errors.Is(err, core.ErrImageRefused) || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("error %v", err)
			}
			nothingStored(t, s, dir)
			if got := reg.Requests(); slices.ContainsFunc(got, func(r string) bool {
				return slices.ContainsFunc(b.Layers, func(l ocispec.Descriptor) bool { return strings.HasSuffix(r, l.Digest.String()) })
			}) {
				t.Errorf("layers were fetched: %q", got)
			}
		})
	}
}

// TestTheIndexIsWhatIsSigned, because the name refers to it.
func TestTheIndexIsWhatIsSigned(t *testing.T) {
	ours, reg := imagetest.NewSigner(t), imagetest.NewRegistry(t)
	one := layered(1, 10)
	all := imagetest.Index(one, imagetest.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "s390x"}}.Build())
	program := verifier(t)
	for repo, signed := range map[string]digest.Digest{"good": all.Manifest.Digest, "bad": one.Manifest.Digest} {
		ref := reg.Push(repo, "v1", all)
		reg.Push(repo, imagetest.SignatureTag(signed), ours.Simple(signed))
		s, _ := policed(t, true, func(c *trust.Config) {
			c.SignatureProgram, c.Default = program, trust.Reject
			c.Rules = []trust.Rule{{Match: []string{"**"}, Verdict: trust.Signed, Keys: []string{ours.File()}}}
		})
		if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); (err == nil) != (repo == "good") || err != nil && !errors.Is(err, core.ErrImageRefused) {
			t.Errorf("%s: %v", repo, err)
		}
	}
}

func TestRefusedByName(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("bad/app", "v1", layered(1, 10))
	s, dir := policed(t, true, func(c *trust.Config) {
		c.Rules = []trust.Rule{{Match: []string{"**/bad/*"}, Verdict: trust.Reject}}
	})
	for _, opts := range []core.PullOptions{{}, {Always: true, Username: "u", Password: "p"}} {
		if _, err := s.Pull(t.Context(), "cri", ref, opts); !errors.Is(err, core.ErrImageRefused) {
			t.Errorf("error %v", err)
		}
	}
	nothingStored(t, s, dir)
	if got := reg.Requests(); len(got) > 0 {
		t.Errorf("the registry was asked: %q", got)
	}
	if _, err := s.Pull(t.Context(), "cri", reg.Push("good/app", "v1", layered(1, 10)), core.PullOptions{}); err != nil {
		t.Error(err)
	}
}

// TestVerifiersDecideOnPulls, each time again.
func TestVerifiersDecideOnPulls(t *testing.T) {
	reg, dir := imagetest.NewRegistry(t), t.TempDir()
	ref := reg.Push("app", "v1", layered(1, 10))
	say := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "v"), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s, root := policed(t, false, func(c *trust.Config) { c.Verifiers = dir })
	say("echo not today; exit 1")
	_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true})
	if !errors.Is(err, core.ErrImageRefused) || !strings.Contains(err.Error(), "not today") {
		t.Errorf("error %v", err)
	}
	nothingStored(t, s, root)
	say("exit 0")
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true}); err != nil {
		t.Error(err)
	}
	say("exit 1")
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true}); !errors.Is(err, core.ErrImageRefused) {
		t.Errorf("the second time: %v", err)
	}
	if _, err := s.Get(t.Context(), "cri", ref); err != nil {
		t.Errorf("what was there went: %v", err)
	}
}

// TestARegistryThatFailsIsNoVerdict: the image may have signatures.
func TestARegistryThatFailsIsNoVerdict(t *testing.T) {
	ours, reg := imagetest.NewSigner(t), imagetest.NewRegistry(t)
	ref := reg.Push("app", "v1", layered(1, 10))
	for _, part := range []string{"/referrers/", ".sig"} {
		reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.Contains(r.URL.Path, part) {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
		s, dir := policed(t, true, func(c *trust.Config) {
			c.Rules = []trust.Rule{{Match: []string{"**"}, Verdict: trust.Signed, Keys: []string{ours.File()}}}
		})
		if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); !errdefs.IsUnavailable(err) || errors.Is(err, core.ErrImageRefused) {
			t.Errorf("%s: %v", part, err)
		}
		nothingStored(t, s, dir)
	}
}
