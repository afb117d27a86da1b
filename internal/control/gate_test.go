package control

import (
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/guest/vsock"
)

// TestARestrictedSocketListsOnly, as long as it is told to, and hides what the read socket
// hides.
func TestARestrictedSocketListsOnly(t *testing.T) {
	restricted := false
	g := gate{restricted: func() bool { return restricted }}
	for method, want := range map[string]codes.Code{
		longshorev1.Containers_ListContainers_FullMethodName: codes.OK,
		longshorev1.Containers_Inspect_FullMethodName:        codes.OK,
		longshorev1.Node_Version_FullMethodName:              codes.OK,
		longshorev1.Containers_Logs_FullMethodName:           codes.PermissionDenied,
		longshorev1.Containers_Why_FullMethodName:            codes.PermissionDenied,
		longshorev1.Containers_Exec_FullMethodName:           codes.PermissionDenied,
		longshorev1.Containers_Remove_FullMethodName:         codes.PermissionDenied,
		longshorev1.Node_Dump_FullMethodName:                 codes.PermissionDenied,
		"/longshore.v1.Containers/Future":                    codes.PermissionDenied,
	} {
		restricted = false
		if err := g.check(method); err != nil {
			t.Errorf("%s: %v", method, err)
		}
		if onReadSocket(g.mark(t.Context())) {
			t.Errorf("%s: secrets are hidden", method)
		}
		restricted = true
		if err := g.check(method); status.Code(err) != want {
			t.Errorf("%s when restricted: %v, want %v", method, err, want)
		}
		if !onReadSocket(g.mark(t.Context())) {
			t.Errorf("%s when restricted: secrets are shown", method)
		}
	}
}

// fromMachine is a connection of another machine.
type fromMachine struct {
	net.Conn
	cid uint32
}

func (c fromMachine) RemoteAddr() net.Addr { return vsock.Addr{CID: c.cid, Port: 5} }

// TestOnlyTheHostComesByVsock: neither this machine's containers nor other guests.
func TestOnlyTheHostComesByVsock(t *testing.T) {
	for cid, want := range map[uint32]bool{vsock.Host: true, 0: false, 1: false, 3: false, vsock.Any: false} {
		_, info, err := peerCredentials{}.ServerHandshake(fromMachine{cid: cid})
		if (err == nil) != want {
			t.Errorf("from %d: %v", cid, err)
		}
		if p, ok := info.(peerInfo); want && (!ok || !p.host) {
			t.Errorf("from %d: %+v", cid, info)
		}
	}
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	if _, _, err := (peerCredentials{}).ServerHandshake(here); err == nil {
		t.Error("a pipe is taken for a socket")
	}
}
