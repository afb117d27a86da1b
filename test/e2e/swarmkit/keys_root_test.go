package swarmkit

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/swarmkit/v2/api"
	"github.com/moby/swarmkit/v2/manager/keymanager"
	"github.com/moby/swarmkit/v2/manager/state"
	"github.com/moby/swarmkit/v2/manager/state/store"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// rotation is how often the key manager changes the keys: a Swarm's does it each twelve hours.
const rotation = 300 * time.Millisecond

// sealed is a machine with a task on an encrypted network.
type sealed struct {
	machine, task *networktest.Namespace
	keys          *vxlan.Keyring
	net           *vxlan.Network
}

func newSealed(t *testing.T, n int) sealed {
	t.Helper()
	s := sealed{machine: networktest.NewNamespace(t), task: networktest.NewNamespace(t)}
	for _, line := range []string{
		fmt.Sprintf("ip link add w%d master wire type veth peer name eth0 netns %s", n, s.machine.Path),
		fmt.Sprintf("ip link set w%d up", n),
		fmt.Sprintf("nsenter --net=%s ip addr add 192.0.2.%d/24 dev eth0", s.machine.Path, n),
		fmt.Sprintf("nsenter --net=%s ip link set eth0 up", s.machine.Path),
	} {
		networktest.Run(t, line)
	}
	dir := t.TempDir()
	err := s.machine.Try(func() (err error) {
		if s.keys, err = vxlan.NewKeyring(nil); err != nil {
			return err
		}
		s.net, err = vxlan.Open(dir, vxlan.Definition{
			Name: "app", MTU: 1424, Local: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n)), Encrypted: true, Keys: s.keys,
			Subnets: []vxlan.Subnet{{Range: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("10.0.1.1"), VNI: 4097}},
		}, nil)
		return err
	})
	if errdefs.IsFailedPrecondition(err) {
		t.Skipf("%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.keys.Remove(dir, "app"); err != nil {
			t.Error(err)
		}
		_ = s.keys.Close()
	})
	if _, err := s.net.Attach(s.task.Path, vxlan.Attachment{Key: "task", Interface: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(taskAddr(n), 24)}}); err != nil {
		t.Fatal(err)
	}
	other := 3 - n
	if err := s.net.SetPeer("other", vxlan.Peer{Addr: taskAddr(other), MAC: vxlan.MACFor(taskAddr(other)), Node: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", other))}); err != nil {
		t.Fatal(err)
	}
	return s
}

func taskAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1, byte(10 + n)}) }

// keysOf returns the keys of encrypted networks, in a node's order.
func keysOf(t *testing.T, c *api.Cluster) (keys []vxlan.Key) {
	t.Helper()
	ids := map[gossip.Key]uint32{}
	var given []gossip.TimedKey
	for _, k := range c.NetworkBootstrapKeys {
		if k.Subsystem == keymanager.SubsystemIPSec {
			given = append(given, gossip.TimedKey{Key: k.Key, Time: k.LamportTime})
			ids[gossip.Key(k.Key)] = uint32(k.LamportTime)
		}
	}
	order, err := gossip.Keyring(given)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range order {
		keys = append(keys, vxlan.Key{Key: k, ID: ids[k]})
	}
	return keys
}

// TestTheKeysOfEncryptedNetworksRotate: while swarmkit's key manager changes the keys at a short
// period, and one node hears of each change before the other, not one question between their tasks
// stays without its answer.
func TestTheKeysOfEncryptedNetworksRotate(t *testing.T) {
	beside(t, func(t *testing.T) {
		nodetest.Lines(t, "ip", "link", "add", "wire", "type", "bridge")
		nodetest.Lines(t, "ip", "link", "set", "wire", "up")
		nodes := []sealed{newSealed(t, 1), newSealed(t, 2)}

		s := store.NewMemoryStore(nil)
		t.Cleanup(func() { _ = s.Close() })
		err := s.Update(func(tx store.Tx) error {
			return store.CreateCluster(tx, &api.Cluster{ID: "cluster", Spec: api.ClusterSpec{Annotations: api.Annotations{Name: store.DefaultClusterName}}})
		})
		if err != nil {
			t.Fatal(err)
		}
		changes, cancel := state.Watch(s.WatchQueue(), api.EventUpdateCluster{})
		t.Cleanup(cancel)
		config := keymanager.DefaultConfig()
		config.RotationInterval = rotation
		manager := keymanager.New(s, config)
		ctx, stop := context.WithCancelCause(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = manager.Run(ctx) })
		t.Cleanup(func() {
			stop(nil)
			running.Wait()
		})
		next := func() []vxlan.Key {
			t.Helper()
			select {
			case e := <-changes:
				return keysOf(t, e.(api.EventUpdateCluster).Cluster)
			case <-time.After(roottest.Patience()):
				t.Fatal("the keys do not change")
			}
			return nil
		}
		first := next()
		for _, n := range nodes {
			if err := n.keys.SetKeys(first); err != nil {
				t.Fatal(err)
			}
		}
		answers, end := asks(t, nodes[0].task, nodes[1].task, taskAddr(2))
		primaries := map[uint32]bool{}
		for i := range 12 {
			keys := next()
			if len(keys) != 3 {
				t.Fatalf("%d keys", len(keys))
			}
			primaries[keys[0].ID] = true
			for j := range nodes {
				if err := nodes[(i+j)%2].keys.SetKeys(keys); err != nil {
					t.Fatal(err)
				}
				until := answers.Load() + 20
				roottest.Eventually(t, "answers go on", func() bool { return t.Failed() || answers.Load() >= until })
			}
		}
		end()
		if len(primaries) != 12 {
			t.Errorf("the nodes have sent by %d keys, want 12", len(primaries))
		}
		t.Logf("%d answers by %d keys", answers.Load(), len(primaries))
	})
}

// asks has one task ask another at its address, with a thousandth of a second between an answer and the next question, until end is called.
func asks(t *testing.T, from, to *networktest.Namespace, addr netip.Addr) (answers *atomic.Int64, end func()) {
	t.Helper()
	var echo net.PacketConn
	to.Do(t, func() (err error) {
		echo, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(addr, 90).String())
		return err
	})
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		buf := make([]byte, 16)
		for {
			n, addr, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], addr)
		}
	}()
	var c net.Conn
	from.Do(t, func() (err error) {
		c, err = new(net.Dialer).DialContext(t.Context(), "udp4", netip.AddrPortFrom(addr, 90).String())
		return err
	})
	answers = new(atomic.Int64)
	var over atomic.Bool
	var asking sync.WaitGroup
	asking.Go(func() {
		defer func() { _ = c.Close() }()
		buf := make([]byte, 16)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ; !over.Load(); <-tick.C {
			question := binary.BigEndian.AppendUint64(nil, uint64(answers.Load()))
			if _, err := c.Write(question); err != nil {
				t.Errorf("after %d answers: %v", answers.Load(), err)
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(roottest.Patience() / 4))
			if n, err := c.Read(buf); err != nil || string(buf[:n]) != string(question) {
				t.Errorf("after %d answers: %x, %v", answers.Load(), buf[:n], err)
				return
			}
			answers.Add(1)
		}
	})
	return answers, func() {
		over.Store(true)
		asking.Wait()
	}
}
