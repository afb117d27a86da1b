package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/ocispec"
)

func TestDoctorTellsOfConnectionsNearTheirLimit(t *testing.T) {
	now := time.Unix(1e6, 0)
	quiet := connlimit.Usage{Options: connlimit.Options{Name: "nomad", Key: "face.nomad.max_connections", Max: 10}, Open: 1, Near: now.Add(-2 * time.Hour)}
	tight := connlimit.Usage{Options: connlimit.Options{Name: "cri", Key: "face.cri.max_connections", Max: 10}, Open: 3, ClosedIdle: 7, Near: now.Add(-time.Minute)}
	if f := connectionFinding([]connlimit.Usage{quiet}, now); f.Status != control.FindingOK || f.Detail != "open: nomad 1 of 10" {
		t.Errorf("%+v", f)
	}
	f := connectionFinding([]connlimit.Usage{quiet, tight}, now)
	if f.Status != control.FindingWarn || !strings.Contains(f.Detail, "cri 3 of 10 open; 7 idle") || !strings.Contains(f.Hint, "face.cri.max_connections") || strings.Contains(f.Hint, "nomad") {
		t.Errorf("%+v", f)
	}
}

// TestDoctorNamesTheKernelsConfinement: a kernel without AppArmor and SELinux has seccomp, and no advice.
func TestDoctorNamesTheKernelsConfinement(t *testing.T) {
	given, err := ocispec.ReadNode()
	if err != nil {
		t.Fatal(err)
	}
	if !given.Seccomp || given.AppArmor || given.SELinux {
		t.Skip("this kernel has others")
	}
	f := confinementFinding(t.Context(), "all pods")
	if f.Status != control.FindingOK || !strings.HasPrefix(f.Detail, "containers are confined by seccomp") || strings.Contains(f.Detail, "SELinux") || strings.Contains(f.Detail, "AppArmor") {
		t.Errorf("%+v", f)
	}
}
