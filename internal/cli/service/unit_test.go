package service

import (
	"strings"
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// TestUnitsAndRestartPolicies checks that never both systemd and the agent restart a container.
func TestUnitsAndRestartPolicies(t *testing.T) {
	for policy, want := range map[string]string{"": "on-abort", "no": "on-abort", "always": "always", "unless-stopped": "always", "on-failure": "on-failure"} {
		if got := restartOf(policy, "on-abort"); got != want {
			t.Errorf("policy %q: %s, want %s", policy, got, want)
		}
		u := unit{name: "web", policy: policy, request: &longshorev1.CreateRequest{Image: "x", Pull: "missing"}}
		err := u.existing()
		if refused := policy != "" && policy != "no"; refused != (err != nil) || refused && !strings.Contains(err.Error(), "longshore update --restart no web") {
			t.Errorf("policy %q, the existing container: %v", policy, err)
		}
	}
}

// TestUnitOfAnOlderRecord checks the error for a record without a request.
func TestUnitOfAnOlderRecord(t *testing.T) {
	u := unit{name: "web"}
	if err := u.again(); err == nil || !strings.Contains(err.Error(), "did not store the request") {
		t.Error(err)
	}
}
