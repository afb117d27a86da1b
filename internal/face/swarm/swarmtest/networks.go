package swarmtest

import (
	"cmp"
	"fmt"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Say has the session's messages say more, from now on.
func (m *Manager) Say(more func(*swarmv1.SessionMessage)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.more = more
	close(m.pushed)
	m.pushed = make(chan struct{})
}

// Keys gives a session's message the keys of overlay networks: three of each kind.
func Keys(msg *swarmv1.SessionMessage) {
	for i, subsystem := range []string{"networking:gossip", "networking:ipsec"} {
		for n := range 3 {
			key := make([]byte, 16)
			key[0], key[1] = byte(i), byte(n)
			msg.NetworkBootstrapKeys = append(msg.NetworkBootstrapKeys, &swarmv1.EncryptionKey{Subsystem: subsystem, Key: key, LamportTime: uint64(3*i + n + 1)})
		}
	}
}

// Overlay is a place on the n-th overlay network, 10.0.n.0/24; that with the number 0 is the one of published
// ports.
func Overlay(id string, n, host int) *swarmv1.NetworkAttachment {
	return &swarmv1.NetworkAttachment{
		Network: &swarmv1.Network{
			Id: id, Spec: &swarmv1.NetworkSpec{Annotations: &swarmv1.Annotations{Name: cmp.Or(id, "x")}, Ingress: n == 0},
			DriverState: &swarmv1.Driver{Name: "overlay", Options: map[string]string{"com.docker.network.driver.overlay.vxlanid_list": fmt.Sprint(4096 + n)}},
			Ipam:        &swarmv1.IPAMOptions{Configs: []*swarmv1.IPAMConfig{{Subnet: fmt.Sprintf("10.0.%d.0/24", n), Gateway: fmt.Sprintf("10.0.%d.1", n)}}},
		},
		Addresses: []string{fmt.Sprintf("10.0.%d.%d/24", n, host)},
	}
}
