package hub

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	joinFlood = 3200 // joins by one token
	// joinRoom is by how many MiB the hub may grow meanwhile: 3,200 joins took 205 MB when each made a node.
	joinRoom = 64
)

// TestMemoryOfAFloodOfJoins: 3,200 joins by one token, from many addresses as fast as they are answered,
// make no more nodes than may wait, and the hub's memory stays bounded, and so it does in a second flood.
func TestMemoryOfAFloodOfJoins(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const addr = "127.0.0.1:14242"
		h := nodetest.StartHub(t, addr)
		token := strings.TrimSpace(h.Must("", "token"))
		_, csr := hubtest.Request(t)
		pid := h.Pid()
		before := resident(t, pid)
		var counts []string
		for flood := range 2 {
			begun := time.Now()
			answers := map[codes.Code]int{}
			for source := range joinFlood / 100 {
				conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(hubtest.Raw{}), grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
					return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(flood+1), byte(source+1))}}).DialContext(ctx, "tcp", to)
				}))
				if err != nil {
					t.Fatal(err)
				}
				for range 100 {
					_, err := swarmv1.NewNodeCAClient(conn).IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: token})
					answers[status.Code(err)]++
				}
				_ = conn.Close()
			}
			grown := resident(t, pid) - before
			counts = append(counts, fmt.Sprintf("%v in %.1f s: %d MiB more than %d", answers, time.Since(begun).Seconds(), grown, before))
			if grown > joinRoom {
				t.Errorf("the hub has grown by %d MiB, more than %d", grown, joinRoom)
			}
			if n := answers[codes.OK]; flood == 0 && n < 1000 || n+answers[codes.ResourceExhausted]+answers[codes.Unavailable] != joinFlood {
				t.Errorf("the answers were %v", answers)
			}
		}
		t.Log(strings.Join(counts, "; then "))
		if n := len(h.Nodes()); n > 1000 {
			t.Errorf("%d nodes wait that were never ready", n)
		}
	})
}

// resident is the memory of a process in MiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return kib >> 10
}
