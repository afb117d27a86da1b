package crowd

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// Echo answers pings of another node's tasks, by VXLAN, as the endpoints of the members would: an
// endpoint on a node without the sender's record cannot answer.
type Echo struct {
	c       *Crowd
	conns   []net.PacketConn
	running sync.WaitGroup
	from    string // the endpoint that asks
	macs    map[netip.Addr]string
	at      map[netip.Addr]netip.Addr

	mu       sync.Mutex // guards asked, answered, wrong
	asked    map[netip.Addr]time.Time
	answered map[netip.Addr]time.Time
	wrong    []string
}

// peerTable has where endpoints are.
const peerTable = "overlay_peer_table"

// The lengths of headers.
const (
	vxlanLen = 8
	etherLen = 14
	ipLen    = 20
)

// Echo begins to answer an endpoint of another node; records are the members'.
func (c *Crowd) Echo(records []Announcement, endpoint string) (*Echo, error) {
	e := &Echo{c: c, from: endpoint, macs: map[netip.Addr]string{}, at: map[netip.Addr]netip.Addr{}, asked: map[netip.Addr]time.Time{}, answered: map[netip.Addr]time.Time{}}
	for _, r := range records {
		if p, ok := r.Record.(gossip.Peer); ok {
			e.macs[p.Addr.Addr()], e.at[p.Addr.Addr()] = p.MAC, p.Tunnel
		}
	}
	for _, m := range c.members {
		conn, err := new(net.ListenConfig).ListenPacket(c.ctx, "udp", netip.AddrPortFrom(m.addr, 4789).String())
		if err != nil {
			e.Close()
			return nil, err
		}
		e.conns = append(e.conns, conn)
		e.running.Go(func() { e.serve(m, conn) })
	}
	return e, nil
}

// Close ends it.
func (e *Echo) Close() {
	for _, c := range e.conns {
		_ = c.Close()
	}
	e.running.Wait()
}

// Pings returns when an endpoint was first asked, and first answered.
func (e *Echo) Pings(addr netip.Addr) (asked, answered time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[addr], e.answered[addr]
}

// Wrong are packets that came to a node, or to an interface, where their address is not.
func (e *Echo) Wrong() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wrong
}

func (e *Echo) serve(m *member, conn net.PacketConn) {
	buf := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		b := buf[:n]
		if len(b) < vxlanLen+etherLen+ipLen+8 || binary.BigEndian.Uint16(b[vxlanLen+12:]) != 0x0800 {
			continue
		}
		ether := b[vxlanLen:]
		ip := ether[etherLen:]
		icmp := ip[ipLen:]
		src, dst := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		if ip[0] != 0x45 || ip[9] != 1 || icmp[0] != 8 {
			continue
		}
		now := time.Now()
		e.mu.Lock()
		if mac := net.HardwareAddr(ether[:6]).String(); e.at[dst] != m.addr || e.macs[dst] != mac {
			e.wrong = append(e.wrong, dst.String()+" by "+mac+" at "+m.addr.String())
		}
		if e.asked[dst].IsZero() {
			e.asked[dst] = now
		}
		e.mu.Unlock()
		r, known := m.record(peerTable, e.from)
		if p, ok := r.(gossip.Peer); !known || !ok || p.Addr.Addr() != src || p.MAC != net.HardwareAddr(ether[6:12]).String() {
			continue
		}
		var mac [6]byte
		copy(mac[:], ether[:6])
		copy(ether[:6], ether[6:12])
		copy(ether[6:12], mac[:])
		copy(ip[12:16], dst.AsSlice())
		copy(ip[16:20], src.AsSlice())
		icmp[0] = 0
		sum := uint32(binary.BigEndian.Uint16(icmp[2:])) + 0x0800 // the type is in the checksum
		binary.BigEndian.PutUint16(icmp[2:], uint16(sum)+uint16(sum>>16))
		to := from.(*net.UDPAddr)
		if _, err := conn.WriteTo(b, &net.UDPAddr{IP: to.IP, Port: 4789}); err != nil {
			continue
		}
		e.mu.Lock()
		if e.answered[dst].IsZero() {
			e.answered[dst] = now
		}
		e.mu.Unlock()
	}
}
