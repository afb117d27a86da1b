package swarm

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/overlay"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// vault is a stack of a service on each node, on an encrypted network alone.
func (x *mixed) vault() string {
	return fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %s
%s    networks: [sealed]
    deploy: {mode: global}
networks:
  sealed: {driver: overlay, driver_opts: {encrypted: ""}}
`, x.ref, served)
}

// espWire counts packets of ESP, and those of VXLAN in clear, on a cable.
type espWire struct {
	mu         sync.Mutex // guards esp, clear
	esp, clear int
}

func watchESP(t *testing.T, cable string) *espWire {
	t.Helper()
	dev, err := net.InterfaceByName(cable)
	if err != nil {
		t.Fatal(err)
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
	if err != nil {
		t.Fatal(err)
	}
	// As a file, so that closing it ends the reader.
	f := os.NewFile(uintptr(fd), "wire")
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}); err != nil {
		t.Fatal(err)
	}
	w := &espWire{}
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 65536)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			w.see(buf[:n])
		}
	})
	t.Cleanup(func() {
		_ = f.Close()
		reading.Wait()
	})
	return w
}

func (w *espWire) see(p []byte) {
	if len(p) < 20 || p[0]>>4 != 4 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch head := int(p[0]&15) * 4; {
	case p[9] == unix.IPPROTO_ESP:
		w.esp++
	case p[9] == unix.IPPROTO_UDP && len(p) >= head+4 && binary.BigEndian.Uint16(p[head+2:]) == overlay.DefaultPort:
		w.clear++
	}
}

// TestAnEncryptedStackBesideDockerds: tasks of dockerd's and ours on an encrypted network reach each
// other by address and by name, and nothing is in clear between the nodes. Our agent is killed,
// and starts without the keys: it is as before. What is lost meanwhile is not counted: emulated, an
// agent may be longer away than other nodes wait.
func TestAnEncryptedStackBesideDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		keys, err := overlay.NewKeyring(nil)
		if err != nil {
			t.Fatal(err)
		}
		err = keys.Able()
		_ = keys.Close()
		if err != nil {
			t.Skipf("make e2e-swarm-vm has a kernel that can: %v", err)
		}
		x := newMixed(t, 1, 1)
		w := watchESP(t, "to-ours0")
		x.deploy("vault", x.vault())
		run := x.settled(map[string]int{"vault_web": 2})
		x.agree("deployed", run, "vault_sealed")
		x.ours[0].node.Kill()
		x.ours[0].node.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return x.ours[0].session() == "up" })
		x.agree("the agent was killed", run, "vault_sealed")
		w.mu.Lock()
		esp, plain := w.esp, w.clear
		w.mu.Unlock()
		if esp == 0 || plain > 0 {
			t.Errorf("between the nodes were %d packets of ESP, %d in clear", esp, plain)
		}
		t.Logf("%d packets of ESP", esp)
		x.docker("stack", "rm", "vault")
		x.ours[0].none()
		x.ours[0].node.Check()
		if out := nodetest.Lines(t, "ip", "-n", "ours0", "xfrm", "state"); len(out) > 0 {
			t.Errorf("left: %s", strings.Join(out, "\n"))
		}
	})
}
