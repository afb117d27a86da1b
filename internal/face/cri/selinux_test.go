package cri

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/ocispec"
)

// TestSELinuxNeedsAKernelWithIt: the face is not made, rather than leave pods without labels.
func TestSELinuxNeedsAKernelWithIt(t *testing.T) {
	if ocispec.SELinuxEnabled() {
		t.Skip("SELinux is on")
	}
	n := newTestNode(t)
	cfg := DefaultConfig()
	cfg.SELinux = true
	_, err := New(Options{Deps: face.Deps{Engine: n.Engine.As(core.OwnerCRI), Logger: slog.Default()}, Config: cfg})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "face.cri.selinux: this kernel has SELinux off") {
		t.Errorf("%v", err)
	}
}
