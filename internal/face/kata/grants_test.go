package kata

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
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
