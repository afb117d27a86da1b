package roottest_test

import (
	"net"
	"os"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

func TestRunGivesOwnNamespaces(t *testing.T) {
	roottest.Run(t, ownNamespaces)
}

func ownNamespaces(t *testing.T) {
	if os.Getpid() != 1 {
		t.Errorf("pid %d, want 1", os.Getpid())
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Flags&net.FlagLoopback == 0 && l.Flags&net.FlagUp != 0 {
			t.Errorf("link %s of the host is visible", l.Name)
		}
		if l.Name == "lo" && l.Flags&net.FlagUp == 0 {
			t.Error("lo is down")
		}
	}
	if entries, err := os.ReadDir("/run"); err != nil || len(entries) != 0 {
		t.Errorf("/run is not fresh: %v %v", entries, err)
	}
}
