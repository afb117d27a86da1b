package cri

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/cri/nri"
)

// TestFailurePoliciesOfPlugins has a plugin that does not answer one request. Its failure policy says whether the request fails,
// and whether the plugin gets later ones.
func TestFailurePoliciesOfPlugins(t *testing.T) {
	for name, c := range map[string]struct {
		policy     *api.FailurePolicy
		fail, keep bool
	}{
		"none":          {nil, false, false},
		"fail":          {&api.FailurePolicy{FailRequest: true}, true, false},
		"keep":          {&api.FailurePolicy{KeepConnected: true}, false, true},
		"fail and keep": {&api.FailurePolicy{FailRequest: true, KeepConnected: true}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			n, socket := newPluggable(t)
			adaptation.SetPluginRequestTimeout(time.Second) // the library has one for a process
			t.Cleanup(func() { adaptation.SetPluginRequestTimeout(nri.DefaultTimeout) })
			p := newPlugin()
			release := make(chan struct{})
			defer close(release)
			var once atomic.Bool
			p.onRun = func() {
				if once.CompareAndSwap(false, true) {
					<-release
				}
			}
			var options []stub.Option
			if c.policy != nil {
				options = append(options, stub.WithFailurePolicy(c.policy))
			}
			p.connect(t, socket, "00", options...)
			n.joined(p)
			_, err := n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: n.podConfig("first")})
			if failed := err != nil && strings.Contains(err.Error(), "00-test"); failed != c.fail || err != nil && !failed {
				t.Errorf("the request: %v; want a failure that names the plugin: %v", err, c.fail)
			}
			if c.fail {
				if left, err := n.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{}); err != nil || len(left.GetItems()) > 0 {
					t.Errorf("it left %v, %v", left, err)
				}
			}
			n.pod(t, "second")
			if kept := slices.Contains(p.heard(), "run second"); kept != c.keep {
				t.Errorf("the plugin got a later request: %v, want %v", kept, c.keep)
			}
		})
	}
}
