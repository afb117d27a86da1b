package access

import (
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/guest/vsock"
)

// TestARestrictedSocketListsOnly checks a gate before and while it is restricted. While it is, it hides secrets as the read
// socket does.
func TestARestrictedSocketListsOnly(t *testing.T) {
	restricted := false
	g := Gate{Restricted: func() bool { return restricted }}
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
		if ReadOnly(g.mark(t.Context())) {
			t.Errorf("%s: secrets are hidden", method)
		}
		restricted = true
		if err := g.check(method); status.Code(err) != want {
			t.Errorf("%s when restricted: %v, want %v", method, err, want)
		}
		if !ReadOnly(g.mark(t.Context())) {
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

// TestOnlyTheHostComesByVsock checks that neither this machine's containers nor other guests are served by vsock.
func TestOnlyTheHostComesByVsock(t *testing.T) {
	for cid, want := range map[uint32]bool{vsock.Host: true, 0: false, 1: false, 3: false, vsock.Any: false} {
		_, info, err := Credentials{}.ServerHandshake(fromMachine{cid: cid})
		if (err == nil) != want {
			t.Errorf("from %d: %v", cid, err)
		}
		if p, ok := info.(peerInfo); want && (!ok || !p.host) {
			t.Errorf("from %d: %+v", cid, info)
		}
	}
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	if _, _, err := (Credentials{}).ServerHandshake(here); err == nil {
		t.Error("a pipe is taken for a socket")
	}
}
