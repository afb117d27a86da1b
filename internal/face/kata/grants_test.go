package kata

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/ocispec"
)

// TestADocumentOfGrantsIsRefused: the program would get more than the document says.
func TestADocumentOfGrantsIsRefused(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	for _, document := range []string{"{log: !container_log }", ""} {
		spec := specOf(t, "cat")
		spec.Annotations = map[string]string{core.GrantAnnotation: document}
		_, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", OCI: spec})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), core.GrantAnnotation) {
			t.Errorf("%q: %v", document, err)
		}
	}
}

// TestAUserNamespaceIsRefused: the container would have the guest's users instead.
func TestAUserNamespaceIsRefused(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	maps := []*katav1.LinuxIDMapping{{HostID: 100000, Size: 65536}}
	for name, set := range map[string]func(*katav1.Linux){
		"namespace": func(l *katav1.Linux) { l.Namespaces = append(l.Namespaces, &katav1.LinuxNamespace{Type: "user"}) },
		"uids":      func(l *katav1.Linux) { l.UIDMappings = maps },
		"gids":      func(l *katav1.Linux) { l.GIDMappings = maps },
	} {
		spec := specOf(t, "cat")
		if spec.Linux == nil {
			spec.Linux = &katav1.Linux{}
		}
		set(spec.Linux)
		_, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", OCI: spec})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "namespace user") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPathsOfTheShareFollowNoLink: neither the root nor a mount leaves the host's share by a link
// in it.
func TestPathsOfTheShareFollowNoLink(t *testing.T) {
	mounts := []specs.Mount{
		{Source: guest.Shared + "/c1-hosts", Options: []string{"rbind", ocispec.BelowOption("/")}},
		{Source: guest.Shared + "/deep/er/file"},
		{Source: guest.Shared + "er/file"},
		{Source: guest.Shared + "/../x"},
		{Source: "proc"},
		{Source: guest.Shared},
	}
	stayInShare(mounts)
	for i, below := range []string{guest.Shared, guest.Shared, "", "", "", ""} {
		if base, _, err := ocispec.Below(mounts[i]); err != nil || base != below {
			t.Errorf("%s is resolved below %q, want %q (%v)", mounts[i].Source, base, below, err)
		}
	}
}
