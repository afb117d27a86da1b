package control_test

import (
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// TestPoliciesAreAskedAboutExecs checks that policies can refuse execs, also in containers of other owners, where only this
// API starts any.
func TestPoliciesAreAskedAboutExecs(t *testing.T) {
	r := newRig(t)
	img := r.AddImage("pod", ocispec.ImageConfig{}, nil)
	theirs := r.Running(r.Pod(core.OwnerCRI, "pod"), "theirs", img, "sh")
	for _, err := range r.RefusesExecs(func() error {
		_, _, err := r.exec(t, &longshorev1.ExecStart{Name: string(theirs.ID), Command: []string{"both"}, Force: true})
		return err
	}) {
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("answered %v", err)
		}
	}
}
