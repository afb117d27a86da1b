package cri

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/face/cri/secprofile"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// PullSecurityProfile asks the registry only if the profile is not present.
func (s *server) PullSecurityProfile(ctx context.Context, req *v1.PullSecurityProfileRequest) (*v1.PullSecurityProfileResponse, error) {
	if s.profiles == nil {
		return s.UnimplementedImageServiceServer.PullSecurityProfile(ctx, req)
	}
	ref := req.GetImage().GetImage()
	if kind := req.GetProfileKind(); kind != v1.SecurityProfileKind_Seccomp {
		return nil, profileInvalid(fmt.Errorf("pull security profile %s: kind %s: only Seccomp is possible", ref, kind))
	}
	opts, err := convert.PullOptions(ref, req.GetAuth())
	if err == nil {
		err = knownHandler(ctx, s, req.GetImage().GetRuntimeHandler())
	}
	if err != nil {
		return nil, profileInvalid(fmt.Errorf("pull security profile %s: %w", ref, err))
	}
	cached, err := s.profiles.Pull(ctx, ref, opts)
	switch {
	case err == nil:
		return &v1.PullSecurityProfileResponse{Cached: cached}, nil
	case errors.Is(err, core.ErrImageRefused):
		return nil, signatureInvalid(err)
	}
	err = fmt.Errorf("pull security profile %s: %w", ref, err)
	switch {
	case errors.Is(err, secprofile.ErrInvalid):
		return nil, profileInvalid(err)
	case errdefs.IsUnavailable(err):
		return nil, status.Errorf(codes.Unavailable, "%s: %v", v1.RegistryUnavailable, err)
	}
	return nil, err
}

// profileInvalid returns an error that kubelet does not repeat.
func profileInvalid(err error) error {
	return status.Errorf(codes.InvalidArgument, "%s: %v", v1.SecurityProfileInvalid, err)
}

func (s *server) ListSecurityProfiles(ctx context.Context, req *v1.ListSecurityProfilesRequest) (*v1.ListSecurityProfilesResponse, error) {
	if s.profiles == nil {
		return s.UnimplementedImageServiceServer.ListSecurityProfiles(ctx, req)
	}
	resp := &v1.ListSecurityProfilesResponse{}
	for _, p := range s.profiles.List() {
		resp.Profiles = append(resp.Profiles, &v1.SecurityProfileInfo{Digest: string(p.Digest), Refs: p.Refs, Size: uint64(p.Size)})
	}
	return resp, nil
}

// RemoveSecurityProfile removes a profile. Running containers keep their filter.
func (s *server) RemoveSecurityProfile(ctx context.Context, req *v1.RemoveSecurityProfileRequest) (*v1.RemoveSecurityProfileResponse, error) {
	if s.profiles == nil {
		return s.UnimplementedImageServiceServer.RemoveSecurityProfile(ctx, req)
	}
	if err := s.profiles.Remove(digest.Digest(req.GetDigest())); err != nil {
		return nil, fmt.Errorf("remove security profile: %w", err)
	}
	return &v1.RemoveSecurityProfileResponse{}, nil
}

// pulledProfile returns the content of a profile of type OCI, and nil for other types. It pulls nothing.
func (s *server) pulledProfile(p *v1.SecurityProfile) ([]byte, error) {
	switch {
	case p.GetProfileType() != v1.SecurityProfile_OCI:
		return nil, nil
	case s.profiles == nil:
		return nil, invalid.Errorf("seccomp: profile type OCI: not supported by this agent")
	}
	b, err := s.profiles.Get(p.GetOciRef())
	if err != nil {
		return nil, fmt.Errorf("seccomp: oci_ref: %w", err)
	}
	return b, nil
}

// seccompFile returns the path of the profile that a security context names on the node: of type Localhost, or the base
// of one of type OCI.
func seccompFile(sc *v1.LinuxContainerSecurityContext) (string, error) {
	kind, file, err := seccompKind(sc)
	if err != nil {
		return "", err
	}
	switch base := sc.GetSeccomp().GetBaseProfile(); {
	case kind == v1.SecurityProfile_OCI && base.GetType() == v1.SecurityProfileBase_Localhost:
		file = base.GetLocalhostRef()
	case kind != v1.SecurityProfile_Localhost:
		return "", nil
	}
	if !path.IsAbs(file) || nul(file) {
		return "", invalid.Errorf("container: seccomp profile %q is not an absolute path", file)
	}
	return file, nil
}

// intersect sets the intersection of a pulled profile with its base: the profile on the node that the request names, or
// else the default.
func (a containerAsk) intersect(s *specs.Spec) error {
	base := specs.Spec{Process: s.Process}
	err := ocispec.DefaultSeccomp(&base)
	if a.seccomp != nil {
		base.Linux.Seccomp, err = secprofile.Parse(a.seccomp, s)
	}
	if err != nil {
		return fmt.Errorf("base of the seccomp profile: %w", err)
	}
	with, err := secprofile.Parse(a.pulled, s)
	if err == nil {
		s.Linux.Seccomp, err = secprofile.Intersect(base.Linux.Seccomp, with)
	}
	if err != nil {
		return fmt.Errorf("seccomp profile %s: %w", a.req.GetConfig().GetLinux().GetSecurityContext().GetSeccomp().GetOciRef(), err)
	}
	return nil
}
