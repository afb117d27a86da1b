package node

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// noSandbox asserts that RunPodSandbox is refused and leaves nothing.
func noSandbox(t *testing.T, n *nodetest.Node, cfg *runtimeapi.PodSandboxConfig, code codes.Code, says ...string) {
	t.Helper()
	had, err := n.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	before := n.Baseline(t).Lasting()
	_, err = n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	refused(t, err, code, says...)
	has, err := n.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(has.GetItems()) != len(had.GetItems()) {
		t.Errorf("sandboxes before %v, after %v", had.GetItems(), has.GetItems())
	}
	left := map[string][]string{}
	defer func() {
		if t.Failed() {
			t.Logf("of the refused sandbox is left: %v", left)
		}
	}()
	nodetest.Eventually(t, "nothing of the sandbox is left", func() bool {
		clear(left)
		for kind, now := range n.Holdings(t).Lasting() {
			if more := nodetest.More(now, before[kind]); len(more) > 0 {
				left[kind] = more
			}
		}
		return len(left) == 0
	})
	clean(t, n)
}

// TestPortsThatAreTaken asks for host ports that another sandbox or a listening
// process has.
func TestPortsThatAreTaken(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		wants := func(name string, port int) *runtimeapi.PodSandboxConfig {
			cfg := n.PodConfig(name)
			cfg.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: int32(port)}}
			return cfg
		}
		n.RunPod(t, wants("warm", 18081)).Remove(t)
		first := n.RunPod(t, wants("first", 18080))
		noSandbox(t, n, wants("second", 18080), codes.FailedPrecondition, "18080", first.ID)
		first.Remove(t)
		second := n.RunPod(t, wants("second", 18080))

		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, service, _ := net.SplitHostPort(l.Addr().String())
		port, _ := strconv.Atoi(service)
		noSandbox(t, n, wants("third", port), codes.FailedPrecondition, service)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		third := n.RunPod(t, wants("third", port))
		second.Remove(t)
		third.Remove(t)
		clean(t, n)
	})
}

// TestAnExhaustedRangeIsTold runs more sandboxes than there are addresses.
func TestAnExhaustedRangeIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		// Network, broadcast and gateway are not leased: one address is left.
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\npod_cidr = \"10.98.0.0/30\"\nlease_rest = 0\n"})
		for range 2 {
			only := n.RunPod(t, n.PodConfig("only"))
			st, err := n.CRI.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: only.ID})
			if err != nil {
				t.Fatal(err)
			}
			ip := st.GetStatus().GetNetwork().GetIp()
			if a, err := netip.ParseAddr(ip); err != nil || a != netip.MustParseAddr("10.98.0.2") {
				t.Errorf("address %q", ip)
			}
			noSandbox(t, n, n.PodConfig("more"), codes.ResourceExhausted, "address range exhausted", "10.98.0.0/30")
			only.Remove(t)
			more := n.RunPod(t, n.PodConfig("more"))
			more.Remove(t)
		}
		clean(t, n)
	})
}

// TestNoRangeIsTold runs a sandbox before kubelet has named a range.
func TestNoRangeIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\npod_cidr = \"from-kubelet\"\n"})
		ready := func() (bool, string) {
			st, err := n.CRI.Status(t.Context(), &runtimeapi.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range st.GetStatus().GetConditions() {
				if c.GetType() == runtimeapi.NetworkReady {
					return c.GetStatus(), c.GetMessage()
				}
			}
			return false, "no condition"
		}
		if is, why := ready(); is || why == "" {
			t.Errorf("NetworkReady %t, %q", is, why)
		}
		host := n.PodConfig("host") // it needs no range
		host.Linux.SecurityContext.NamespaceOptions.Network, host.Hostname = runtimeapi.NamespaceMode_NODE, ""
		n.RunPod(t, host).Remove(t)
		noSandbox(t, n, n.PodConfig("early"), codes.FailedPrecondition, "no address range configured")
		update := func(cidr string) error {
			_, err := n.CRI.UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{
				RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}},
			})
			return err
		}
		refused(t, update("10.97.0.0/99"), codes.InvalidArgument, "10.97.0.0/99")
		if err := update("10.97.0.0/24"); err != nil {
			t.Fatal(err)
		}
		if is, why := ready(); !is {
			t.Errorf("NetworkReady is false: %s", why)
		}
		n.RunPod(t, n.PodConfig("early")).Remove(t)
		clean(t, n)
	})
}
