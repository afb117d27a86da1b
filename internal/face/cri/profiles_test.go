package cri

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// profile forbids mkdir and permits the rest; profileRef is the reference of the registry for it.
const (
	profile    = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`
	profileRef = "r.example/profile@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
)

// profileRegistry has one artifact, profile.
type profileRegistry struct {
	err   error
	asked int
}

func (r *profileRegistry) Pull(_ context.Context, ref string, _ core.PullOptions) (core.Image, error) {
	r.asked++
	if r.err != nil || ref != profileRef {
		return core.Image{}, fmt.Errorf("%s: %w", ref, errOr(r.err, errdefs.ErrNotFound))
	}
	file := core.ArtifactFile{Name: "profile.json", Digest: digest.FromString(profile), Size: int64(len(profile))}
	return core.Image{ID: "sha256:p", Artifact: "application/vnd.example", Files: []core.ArtifactFile{file}}, nil
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func (r *profileRegistry) List(context.Context) ([]core.Image, error) { return nil, nil }

func (r *profileRegistry) Remove(context.Context, string) error { return nil }

func (r *profileRegistry) export(_ context.Context, _ string, w io.Writer) error {
	t := tar.NewWriter(w)
	err := t.WriteHeader(&tar.Header{Name: "blobs/sha256/" + digest.FromString(profile).Encoded(), Size: int64(len(profile))})
	if err == nil {
		_, err = io.WriteString(t, profile)
	}
	return err
}

func TestSecurityProfiles(t *testing.T) {
	n := newTestNode(t)
	pull := &v1.PullSecurityProfileRequest{Image: &v1.ImageSpec{Image: profileRef}, ProfileKind: v1.SecurityProfileKind_Seccomp}
	sc := &v1.SecurityProfile{ProfileType: v1.SecurityProfile_OCI, OciRef: profileRef}
	pod := n.podConfig("p")
	pod.Linux.SecurityContext.Seccomp = sc
	_, err := n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: pod})
	wantCode(t, "a sandbox with a profile that was not pulled", err, codes.NotFound)
	create := n.containerRequest(n.pod(t, "q"), "c")
	create.Config.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{Seccomp: sc}}
	_, err = n.CreateContainer(t.Context(), create)
	wantCode(t, "a container with one", err, codes.NotFound)
	if n.registry.asked != 0 {
		t.Error("the registry was asked")
	}
	for _, cached := range []bool{false, true} {
		if got, err := n.images.PullSecurityProfile(t.Context(), pull); err != nil || got.Cached != cached {
			t.Errorf("%v, %v; want cached %v", got, err, cached)
		}
	}
	list, err := n.images.ListSecurityProfiles(t.Context(), &v1.ListSecurityProfilesRequest{})
	if err != nil || len(list.Profiles) != 1 || list.Profiles[0].Digest != string(digest.FromString(profile)) || !slices.Equal(list.Profiles[0].Refs, []string{profileRef}) || list.Profiles[0].Size != uint64(len(profile)) {
		t.Errorf("%v, %v", list, err)
	}
	if images, err := n.images.ListImages(t.Context(), &v1.ListImagesRequest{}); err != nil || len(images.Images) != 1 {
		t.Errorf("a profile is no image: %v, %v", images, err)
	}
	if _, err = n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: pod}); err != nil {
		t.Error(err)
	}
	if _, err = n.CreateContainer(t.Context(), create); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := n.images.RemoveSecurityProfile(t.Context(), &v1.RemoveSecurityProfileRequest{Digest: list.GetProfiles()[0].GetDigest()}); err != nil {
			t.Error(err)
		}
	}
	create = n.containerRequest(create.PodSandboxId, "d")
	create.Config.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{Seccomp: sc}}
	_, err = n.CreateContainer(t.Context(), create)
	wantCode(t, "a profile that was removed", err, codes.NotFound)
}

// TestErrorsOfProfilesAreThoseThatKubeletKnows: kubelet repeats all but SecurityProfileInvalid.
func TestErrorsOfProfilesAreThoseThatKubeletKnows(t *testing.T) {
	n := newTestNode(t)
	const seccomp = v1.SecurityProfileKind_Seccomp
	for name, c := range map[string]struct {
		ref, handler string
		kind         v1.SecurityProfileKind
		fail         error
		code         codes.Code
		prefix       string
	}{
		"no kind":         {profileRef, "", 0, nil, codes.InvalidArgument, "SecurityProfileInvalid: "},
		"a tag":           {"r.example/profile:1", "", seccomp, nil, codes.InvalidArgument, "SecurityProfileInvalid: "},
		"unknown handler": {profileRef, "nonesuch", seccomp, nil, codes.InvalidArgument, "SecurityProfileInvalid: "},
		"unsigned":        {profileRef, "", seccomp, core.ErrImageRefused, codes.Unknown, "SignatureValidationFailed: "},
		"unreachable":     {profileRef, "", seccomp, errdefs.ErrUnavailable, codes.Unavailable, "RegistryUnavailable: "},
		"missing":         {profileRef, "", seccomp, errdefs.ErrNotFound, codes.NotFound, "pull security profile " + profileRef},
	} {
		n.registry.err = c.fail
		_, err := n.images.PullSecurityProfile(t.Context(), &v1.PullSecurityProfileRequest{Image: &v1.ImageSpec{Image: c.ref, RuntimeHandler: c.handler}, ProfileKind: c.kind})
		if status.Code(err) != c.code || !strings.HasPrefix(status.Convert(err).Message(), c.prefix) {
			t.Errorf("%s: %v; want %s %s", name, err, c.code, c.prefix)
		}
	}
}

// TestPulledProfilesOnlyTighten shows the filter of a container with each base of a pulled profile.
func TestPulledProfilesOnlyTighten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "base.json")
	if err := os.WriteFile(file, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["swapon"],"action":"SCMP_ACT_KILL"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		base     *v1.SecurityProfileBase
		fallback specs.LinuxSeccompAction
		allowed  map[string]bool
	}{
		"the default":       {nil, specs.ActErrno, map[string]bool{"read": true, "mkdir": false, "mount": false, "swapon": false}},
		"the default, said": {&v1.SecurityProfileBase{}, specs.ActErrno, map[string]bool{"read": true, "mkdir": false, "mount": false, "swapon": false}},
		"one of the node": {
			&v1.SecurityProfileBase{Type: v1.SecurityProfileBase_Localhost, LocalhostRef: file}, specs.ActAllow,
			map[string]bool{"read": true, "mkdir": false, "mount": true, "swapon": false},
		},
	} {
		a := testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) {
			sc.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_OCI, OciRef: profileRef, BaseProfile: c.base}
		}))
		var err error
		if a.seccomp, err = readSeccomp(a.req.GetConfig().GetLinux().GetSecurityContext()); err != nil {
			t.Fatal(err)
		}
		a.pulled = []byte(profile)
		s := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
		if err := a.filter(s); err != nil {
			t.Fatal(err)
		}
		got := s.Linux.Seccomp
		if got.DefaultAction != c.fallback {
			t.Errorf("%s: default action %s", name, got.DefaultAction)
		}
		for call, want := range c.allowed {
			action := got.DefaultAction
			for _, r := range got.Syscalls {
				if slices.Contains(r.Names, call) && len(r.Args) == 0 {
					action = r.Action
				}
			}
			if (action == specs.ActAllow) != want {
				t.Errorf("%s: %s gets %s", name, call, action)
			}
		}
	}
}
