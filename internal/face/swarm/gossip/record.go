package gossip

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	gossippb "github.com/longshore/longshore/api/swarm/gossip"
)

// ID names an endpoint: one interface of a task, or of a node, on a network.
type ID struct {
	Network  string
	Endpoint string // the key in both tables
}

// NodeName returns the name of a node in the gossip. It stays the same while the node is in the
// Swarm: under another name, its earlier records would be another node's.
func NodeName(swarmNode string) string { return digest(swarmNode, "")[:12] }

// EndpointID returns the key of an interface of a task or a node. It stays the same while the task
// lives, also over restarts of this process.
func EndpointID(what, network string) string { return digest(what, network) }

func digest(what, network string) string {
	sum := sha256.Sum256([]byte(what + "\x00" + network))
	return hex.EncodeToString(sum[:])
}

// Record is a Peer or an Endpoint.
type Record interface {
	table() string
	encode() ([]byte, error)
}

// The tables' names.
const (
	peerTable     = "overlay_peer_table"
	endpointTable = "endpoint_table"
)

// Peer says behind which node an endpoint is.
type Peer struct {
	Addr   netip.Prefix // with the length of the network's prefix
	MAC    string       // six bytes, as net.HardwareAddr writes them
	Tunnel netip.Addr   // the node's address for the data path
}

// Endpoint has the names of an endpoint and its service.
type Endpoint struct {
	Name      string
	Service   string // "" for a container that is no task of a service
	ServiceID string
	VIP       netip.Addr // zero when there is none
	Addr      netip.Addr
	Ports     []Port   // on the ingress network only
	Aliases   []string // of the service
	// TaskAliases are those of the endpoint alone: its container's short id and hostname.
	TaskAliases []string
	// Disabled says that the endpoint is about to end: it gets no new connections of the service.
	Disabled bool
}

// Port is one that a service publishes on every node.
type Port struct {
	Name      string
	Proto     string // tcp, udp, sctp
	Target    uint16
	Published uint16
}

// The bounds of records from others.
const (
	maxRecord  = 16 << 10 // bytes
	maxName    = 255
	maxAliases = 256
	maxPorts   = 256
)

// protocols are the names of protocols by their number.
var protocols = map[gossippb.PortConfig_Protocol]string{
	gossippb.PortConfig_TCP: "tcp", gossippb.PortConfig_UDP: "udp", gossippb.PortConfig_SCTP: "sctp",
}

// noVIP stands for no address where the Swarm writes one.
const noVIP = "<nil>"

func (Peer) table() string     { return peerTable }
func (Endpoint) table() string { return endpointTable }

func (p Peer) encode() ([]byte, error) {
	if _, err := hardware(p.MAC); err != nil || !p.Addr.IsValid() || !p.Tunnel.IsValid() {
		return nil, fmt.Errorf("peer %s at %s with mac %q: %w", p.Addr, p.Tunnel, p.MAC, errdefs.ErrInvalidArgument)
	}
	return proto.Marshal(&gossippb.PeerRecord{EndpointIp: p.Addr.String(), EndpointMac: p.MAC, TunnelEndpointIp: p.Tunnel.String()})
}

func (e Endpoint) encode() ([]byte, error) {
	if e.Name == "" || !e.Addr.IsValid() {
		return nil, fmt.Errorf("endpoint %q at %s: %w", e.Name, e.Addr, errdefs.ErrInvalidArgument)
	}
	m := &gossippb.EndpointRecord{
		Name: e.Name, ServiceName: e.Service, ServiceId: e.ServiceID, VirtualIp: noVIP, EndpointIp: e.Addr.String(),
		Aliases: e.Aliases, TaskAliases: e.TaskAliases, ServiceDisabled: e.Disabled,
	}
	if e.VIP.IsValid() {
		m.VirtualIp = e.VIP.String()
	}
	for _, p := range e.Ports {
		c := &gossippb.PortConfig{Name: p.Name, TargetPort: uint32(p.Target), PublishedPort: uint32(p.Published)}
		found := false
		for number, name := range protocols {
			if name == cmp.Or(p.Proto, "tcp") {
				c.Protocol, found = number, true
			}
		}
		if !found {
			return nil, fmt.Errorf("endpoint %q: protocol %q of port %d: %w", e.Name, p.Proto, p.Published, errdefs.ErrInvalidArgument)
		}
		m.IngressPorts = append(m.IngressPorts, c)
	}
	return proto.Marshal(m)
}

// IsTable reports whether a table of the gossip has records.
func IsTable(name string) bool { return name == peerTable || name == endpointTable }

// Encode returns a record as it goes over the wire, and the table that it is for. Errors are
// InvalidArgument.
func Encode(r Record) (table string, value []byte, err error) {
	value, err = r.encode()
	return r.table(), value, err
}

// Decode reads a record of another node. The result has the right form; the caller must check
// whether an address is the network's, or in use.
func Decode(table string, value []byte) (Record, error) {
	if len(value) > maxRecord {
		return nil, fmt.Errorf("it has %d bytes: %w", len(value), errdefs.ErrInvalidArgument)
	}
	if table == peerTable {
		return decodePeer(value)
	}
	return decodeEndpoint(value)
}

func decodePeer(value []byte) (Record, error) {
	invalid := func(what, text string) (Record, error) {
		return nil, fmt.Errorf("%s %q: %w", what, short(text), errdefs.ErrInvalidArgument)
	}
	var m gossippb.PeerRecord
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	p := Peer{}
	var err error
	if p.Addr, err = netip.ParsePrefix(m.GetEndpointIp()); err != nil || !unicast(p.Addr.Addr()) {
		return invalid("address", m.GetEndpointIp())
	}
	if p.Tunnel, err = netip.ParseAddr(m.GetTunnelEndpointIp()); err != nil || !unicast(p.Tunnel) {
		return invalid("tunnel", m.GetTunnelEndpointIp())
	}
	mac, err := hardware(m.GetEndpointMac())
	if err != nil {
		return invalid("mac", m.GetEndpointMac())
	}
	p.MAC = mac.String()
	return p, nil
}

// hardware parses an Ethernet address that one interface can have.
func hardware(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return nil, fmt.Errorf("%q is no address of an interface: %w", short(text), errdefs.ErrInvalidArgument)
	}
	return mac, nil
}

func decodeEndpoint(value []byte) (Record, error) {
	var m gossippb.EndpointRecord
	if err := proto.Unmarshal(value, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	e := Endpoint{
		Name: m.GetName(), Service: m.GetServiceName(), ServiceID: m.GetServiceId(),
		Aliases: m.GetAliases(), TaskAliases: m.GetTaskAliases(), Disabled: m.GetServiceDisabled(),
	}
	invalid := func(what, text string) (Record, error) {
		return nil, fmt.Errorf("%s %q: %w", what, short(text), errdefs.ErrInvalidArgument)
	}
	if len(e.Aliases)+len(e.TaskAliases) > maxAliases || len(m.GetIngressPorts()) > maxPorts {
		return nil, fmt.Errorf("%d aliases and %d ports: %w", len(e.Aliases)+len(e.TaskAliases), len(m.GetIngressPorts()), errdefs.ErrInvalidArgument)
	}
	if e.Name == "" {
		return invalid("name", "")
	}
	for _, n := range slices.Concat([]string{e.Name, e.Service, e.ServiceID}, e.Aliases, e.TaskAliases) {
		if !IsName(n) {
			return invalid("name", n)
		}
	}
	var err error
	if e.Addr, err = netip.ParseAddr(m.GetEndpointIp()); err != nil || !unicast(e.Addr) {
		return invalid("address", m.GetEndpointIp())
	}
	if vip := m.GetVirtualIp(); vip != "" && vip != noVIP {
		if e.VIP, err = netip.ParseAddr(vip); err != nil || !unicast(e.VIP) || e.VIP == e.Addr {
			return invalid("virtual address", vip)
		}
	}
	for _, c := range m.GetIngressPorts() {
		name, known := protocols[c.GetProtocol()]
		if !known || c.GetPublishedPort() == 0 || c.GetPublishedPort() > 65535 || c.GetTargetPort() == 0 || c.GetTargetPort() > 65535 {
			return nil, fmt.Errorf("port %d to %d of protocol %d: %w", c.GetPublishedPort(), c.GetTargetPort(), c.GetProtocol(), errdefs.ErrInvalidArgument)
		}
		e.Ports = append(e.Ports, Port{Name: c.GetName(), Proto: name, Target: uint16(c.GetTargetPort()), Published: uint16(c.GetPublishedPort())})
	}
	return e, nil
}

// unicast reports whether a can be the address of an interface that others reach.
func unicast(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && (a.IsGlobalUnicast() || a.IsLinkLocalUnicast())
}

// short bounds a quotation of another node's record.
func short(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// Check returns why a record cannot be announced: it has no form, or others of our kind would leave it out.
func Check(r Record) error {
	table, value, err := Encode(r)
	if err == nil {
		_, err = Decode(table, value)
	}
	return err
}

// IsName reports whether an endpoint can be called so.
func IsName(s string) bool {
	return len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// Same reports whether two records say the same.
func Same(a, b Record) bool {
	x, errX := a.encode()
	y, errY := b.encode()
	return errX == nil && errY == nil && a.table() == b.table() && bytes.Equal(x, y)
}
