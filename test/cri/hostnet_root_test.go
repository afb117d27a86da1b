package cri

import (
	"fmt"
	"net"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAUserNamespaceOnTheNodesNetwork (KEP-5607): with hostNetwork and hostUsers: false a pod has the node's network without rights
// over it, and /sys shows the node's, read-only. The runtimes' features announce it.
func TestAUserNamespaceOnTheNodesNetwork(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, runtime := range []string{"native", "crun"} {
			t.Run(runtime, func(t *testing.T) { usersOnHostNetwork(t, runtime) })
		}
	})
}

func usersOnHostNetwork(t *testing.T, runtime string) {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Runtime: runtime})
	image := n.Busybox(t)
	st, err := n.CRI.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil || !st.GetFeatures().GetUserNamespacesHostNetwork() {
		t.Errorf("features %v, %v", st.GetFeatures(), err)
	}
	ids := []*runtimeapi.IDMapping{{HostId: podRoot, ContainerId: 0, Length: 65536}}
	cfg := n.PodConfig("users")
	cfg.Hostname = ""
	options := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	options.Network = runtimeapi.NamespaceMode_NODE
	options.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	pod := n.RunPod(t, cfg)
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	c := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", `
echo map $(cat /proc/self/uid_map); echo devices $(ls /sys/class/net); ls /sys/fs/cgroup >/dev/null && echo cgroups
echo 1 2>/dev/null >/sys/kernel/mm/ksm/run && echo wrote; mkdir /sys/x 2>/dev/null && echo made
httpd -p 80 -h /tmp 2>/dev/null && echo low port; httpd -p 18080 -h /tmp && echo high port; httpd -p `+port+` -h /tmp 2>/dev/null && echo twice
ip link add x type dummy 2>/dev/null && echo link; hostname other 2>/dev/null && echo named; echo end`)
	c.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: options}
	app := pod.Run(t, c)
	app.WaitExited(t)
	log := strings.Join(logTexts(app.ReadLog(t)), "\n") + "\n"
	for _, want := range []string{fmt.Sprintf("map 0 %d 65536\n", podRoot), "devices lo", "cgroups\n", "high port\n", "end\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in\n%s", want, log)
		}
	}
	for _, bad := range []string{"wrote", "made", "low port", "twice", "link", "named"} {
		if strings.Contains(log, bad+"\n") {
			t.Errorf("%s:\n%s", bad, log)
		}
	}
	pod.Remove(t)
	n.Check()
}
