// Package doorbell has packet sockets that notice the arrival of packets in a network namespace which a sleeping
// process must handle. The kernel answers all others: handshakes, acknowledgements, pings, neighbour discovery. A
// Bell outlives the agent if a core.Holder has its file, and then rings for the packets that came meanwhile. Start
// at Open.
package doorbell

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Bell is an open packet socket.
type Bell struct{ f *os.File }

// Open opens a socket in the network namespace at path.
func Open(path string) (*Bell, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }()
	type result struct {
		fd  int
		err error
	}
	made := make(chan result)
	go func() {
		// The thread is not unlocked: it ends with the goroutine, because it is in another namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			made <- result{-1, fmt.Errorf("enter the network namespace: %w", err)}
			return
		}
		fd, err := open()
		made <- result{fd, err}
	}()
	r := <-made
	if r.err != nil {
		return nil, r.err
	}
	return &Bell{os.NewFile(uintptr(r.fd), "doorbell")}, nil
}

func open() (int, error) {
	// Protocol 0 receives nothing until bind, so that no packet passes before the filter is set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	err = setFilter(fd)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.BigEndian.Uint16([]byte{unix.ETH_P_ALL & 0xff, unix.ETH_P_ALL >> 8})})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	return fd, nil
}

func setFilter(fd int) error {
	program, err := filter()
	if err != nil {
		return err
	}
	raw := make([]unix.SockFilter, len(program))
	for i, in := range program {
		raw[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]})
}

// Kept returns the bell of a file that a holder kept.
func Kept(f *os.File) *Bell { return &Bell{f} }

// File is the bell's open file, for a holder.
func (b *Bell) File() *os.File { return b.f }

// Close closes the bell. Wait returns then.
func (b *Bell) Close() error { return b.f.Close() }

// Wait waits for a packet.
func (b *Bell) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = b.f.Close() })
	defer stop()
	var one [1]byte
	for {
		_, err := b.f.Read(one[:])
		switch {
		case err == nil, errors.Is(err, unix.ENETDOWN): // an interface has gone down; its packets were counted before
			if err == nil {
				return nil
			}
		default:
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// The labels of the filter's jumps.
const (
	accept = "accept"
	refuse = "refuse"
)

// filter accepts a packet for this host if a process must handle it: TCP segments with data or with the flags SYN,
// FIN or RST, and datagrams of UDP, UDP-Lite, DCCP and SCTP. Offsets are those of the network header.
func filter() ([]bpf.RawInstruction, error) {
	const (
		host  = 0 // PACKET_HOST
		flags = 0x07
	)
	var p program
	p.add(bpf.LoadExtension{Num: bpf.ExtType})
	p.jump(bpf.JumpNotEqual, host, refuse)
	p.add(bpf.LoadExtension{Num: bpf.ExtProto})
	p.jump(bpf.JumpEqual, unix.ETH_P_IP, "ip4")
	p.jump(bpf.JumpNotEqual, unix.ETH_P_IPV6, refuse)

	p.add(bpf.LoadAbsolute{Off: 6, Size: 1})
	p.datagrams()
	p.jump(bpf.JumpEqual, unix.IPPROTO_FRAGMENT, accept)
	p.jump(bpf.JumpNotEqual, unix.IPPROTO_TCP, refuse)
	p.add(bpf.LoadAbsolute{Off: 40 + 13, Size: 1})
	p.jump(bpf.JumpBitsSet, flags, accept)
	p.add(bpf.LoadAbsolute{Off: 40 + 12, Size: 1}) // the header's length, in units of 4 bytes, in the upper bits
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0})
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 2})
	p.add(bpf.TAX{})
	p.add(bpf.LoadAbsolute{Off: 4, Size: 2}) // the payload's length, 0 for a jumbogram
	p.jump(bpf.JumpEqual, 0, accept)
	p.add(bpf.ALUOpX{Op: bpf.ALUOpSub})
	p.jump(bpf.JumpEqual, 0, refuse)
	p.jump(bpf.JumpGreaterOrEqual, 0, accept)

	p.label("ip4")
	p.add(bpf.LoadAbsolute{Off: 9, Size: 1})
	p.datagrams()
	p.jump(bpf.JumpNotEqual, unix.IPPROTO_TCP, refuse)
	p.add(bpf.LoadMemShift{Off: 0}) // X is the length of the network header
	p.add(bpf.LoadIndirect{Off: 13, Size: 1})
	p.jump(bpf.JumpBitsSet, flags, accept)
	p.add(bpf.LoadIndirect{Off: 12, Size: 1})
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0})
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 2})
	p.add(bpf.ALUOpX{Op: bpf.ALUOpAdd}) // both headers
	p.add(bpf.TAX{})
	p.add(bpf.LoadAbsolute{Off: 2, Size: 2}) // the packet's length, 0 for one that the kernel has joined of many
	p.jump(bpf.JumpEqual, 0, accept)
	p.add(bpf.ALUOpX{Op: bpf.ALUOpSub})
	p.jump(bpf.JumpEqual, 0, refuse)

	p.label(accept)
	p.add(bpf.RetConstant{Val: 1})
	p.label(refuse)
	p.add(bpf.RetConstant{Val: 0})
	return p.assemble()
}

// program is a filter with labels.
type program struct {
	code   []bpf.Instruction
	labels map[string]int
	jumps  map[int]string // by their places in code
}

func (p *program) add(i bpf.Instruction) { p.code = append(p.code, i) }

func (p *program) label(name string) {
	if p.labels == nil {
		p.labels = map[string]int{}
	}
	p.labels[name] = len(p.code)
}

// jump jumps to a label behind it.
func (p *program) jump(cond bpf.JumpTest, value uint32, label string) {
	if p.jumps == nil {
		p.jumps = map[int]string{}
	}
	p.jumps[len(p.code)] = label
	p.add(bpf.JumpIf{Cond: cond, Val: value})
}

// datagrams accepts the protocols of datagrams.
func (p *program) datagrams() {
	for _, proto := range []uint32{unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP} {
		p.jump(bpf.JumpEqual, proto, accept)
	}
}

func (p *program) assemble() ([]bpf.RawInstruction, error) {
	for at, label := range p.jumps {
		j, ok := p.code[at].(bpf.JumpIf)
		to, known := p.labels[label]
		if skip := to - at - 1; ok && known && skip >= 0 && skip < 256 {
			j.SkipTrue = uint8(skip)
			p.code[at] = j
			continue
		}
		return nil, fmt.Errorf("filter: a jump to %s", label)
	}
	return bpf.Assemble(p.code)
}
