package network_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// restricted sets up a sandbox with an egress list on the default network.
func (r *rig) restricted(n int, list ...string) box {
	r.t.Helper()
	ns := networktest.NewNamespace(r.t)
	req := r.request(ns, n)
	req.Config.Egress = list
	req.Config.DNS.Servers = []string{networktest.WorldDNS}
	return r.do(ns, req)
}

// resolve asks the sandbox's name server, and returns the code of the answer and its addresses.
func (b box) resolve(t *testing.T, name string, typ dnsmessage.Type) (dnsmessage.RCode, []string) {
	t.Helper()
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}}}
	packed, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var got dnsmessage.Message
	b.ns.Do(t, func() error {
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(names.Address(), 53)))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(roottest.Patience())); err != nil {
			return err
		}
		if _, err := conn.Write(packed); err != nil {
			return err
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		return got.Unpack(buf[:n])
	})
	var addrs []string
	for _, rec := range got.Answers {
		switch b := rec.Body.(type) {
		case *dnsmessage.AResource:
			addrs = append(addrs, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			addrs = append(addrs, netip.AddrFrom16(b.AAAA).String())
		}
	}
	slices.Sort(addrs)
	return got.RCode, addrs
}

// reaches asserts whether a sandbox reaches a server. A refusal must come at once, as an error that programs know.
func (b box) reaches(t *testing.T, proto, at string, want bool) {
	t.Helper()
	_, err := b.ns.Ask(proto, at)
	switch {
	case want && err != nil:
		t.Errorf("%s to %s: %v", proto, at, err)
	case !want && err == nil:
		t.Errorf("%s to %s was answered", proto, at)
	case !want && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EHOSTUNREACH):
		t.Errorf("%s to %s: %v, want a refusal", proto, at, err)
	}
}

func TestEgressByName(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t, "93.184.215.1", "93.184.215.2", "93.184.215.3", "10.66.0.1", "169.254.169.254")
		w.Set("api.example.com", "93.184.215.1")
		w.Set("other.example.com", "93.184.215.2")
		w.Set("cdn.packages.example", "edge.cdn.example")
		w.Set("edge.cdn.example", "93.184.215.3")
		w.Set("inside.example.com", "10.66.0.1")
		w.Set("db.corp.example", "10.66.0.1")
		w.Set("meta.example.com", "169.254.169.254")
		r := newRig(t, nil)
		r.start()
		b := r.restricted(1, "api.example.com:443", "*.packages.example", "inside.example.com", "db.corp.example@private:80", "meta.example.com@private")
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 2)
		req.Config.Metadata = true
		open := r.do(ns, req)

		// Before the first question nothing is open, and later no address of another name.
		for _, at := range []string{"93.184.215.1:443", "93.184.215.2:443", "93.184.215.1:53", networktest.WorldDNS + ":53", "169.254.169.254:80"} {
			b.reaches(t, "tcp", at, false)
			if at != networktest.WorldDNS+":53" {
				open.reaches(t, "tcp", at, true)
			}
			b.reaches(t, "udp", at, false)
		}
		w.Asked()
		for _, name := range []string{"other.example.com", "x.api.example.com", "packages.example", "edge.cdn.example", "example.com", "secret.attacker.example"} {
			if code, addrs := b.resolve(t, name, dnsmessage.TypeA); code != dnsmessage.RCodeNameError || len(addrs) > 0 {
				t.Errorf("%s: %v %v, want that it does not exist", name, code, addrs)
			}
		}
		if asked := w.Asked(); len(asked) > 0 {
			t.Errorf("questions of %v left the node", asked)
		}

		want := func(name string, addrs ...string) {
			t.Helper()
			if code, got := b.resolve(t, name, dnsmessage.TypeA); code != dnsmessage.RCodeSuccess || !slices.Equal(got, addrs) {
				t.Errorf("%s: %v %v, want %v", name, code, got, addrs)
			}
		}
		want("api.example.com", "93.184.215.1")
		b.reaches(t, "tcp", "93.184.215.1:443", true)
		b.reaches(t, "udp", "93.184.215.1:443", true)
		b.reaches(t, "tcp", "93.184.215.1:80", false)
		want("API.Example.COM", "93.184.215.1")
		// The alias of a name is not a name of the list, and its address is.
		want("cdn.packages.example", "93.184.215.3")
		b.reaches(t, "tcp", "93.184.215.3:80", true)
		b.reaches(t, "tcp", "93.184.215.3:853", false)
		// Private addresses only where the list says so, and never this link's.
		if code, addrs := b.resolve(t, "inside.example.com", dnsmessage.TypeA); code != dnsmessage.RCodeNameError {
			t.Errorf("inside.example.com: %v %v", code, addrs)
		}
		want("db.corp.example", "10.66.0.1")
		b.reaches(t, "tcp", "10.66.0.1:80", true)
		b.reaches(t, "tcp", "10.66.0.1:443", false)
		if code, addrs := b.resolve(t, "meta.example.com", dnsmessage.TypeA); code != dnsmessage.RCodeNameError {
			t.Errorf("meta.example.com: %v %v", code, addrs)
		}
		b.reaches(t, "tcp", "169.254.169.254:80", false)
		// A neighbour is no proxy.
		open.ns.Serve(t, "tcp", 8080)
		b.reaches(t, "tcp", open.addr(true).String()+":8080", false)

		b.logged(t, r, egress.RecordRefusedName, "other.example.com", "")
		b.logged(t, r, egress.RecordResolved, "api.example.com", "")
		b.logged(t, r, egress.RecordOpened, "api.example.com", "93.184.215.1:443")
		b.logged(t, r, egress.RecordRefused, "", "93.184.215.2:443")
		r.check(b)
		networktest.Run(t, "nsenter --net="+b.ns.Path+" nft flush chain inet longshore-egress out")
		if err := r.net.Check(t.Context(), b.req); err == nil {
			t.Error("check does not notice that the rules are gone")
		}
		r.down(b)
		r.down(open)
		if _, err := os.Stat(r.net.EgressLog(b.req.Sandbox)); !os.IsNotExist(err) {
			t.Errorf("the log of a stopped sandbox: %v", err)
		}
	})
}

// logged waits for a record.
func (b box) logged(t *testing.T, r *rig, kind, name, at string) {
	t.Helper()
	roottest.Eventually(t, fmt.Sprintf("the egress log has %s %s %s", kind, name, at), func() bool {
		f, err := os.Open(r.net.EgressLog(b.req.Sandbox))
		if err != nil {
			return false
		}
		defer func() { _ = f.Close() }()
		list, err := egress.Records(f)
		return err == nil && slices.ContainsFunc(list, func(rec egress.Record) bool {
			return rec.Kind == kind && rec.Name == name && (at == "" || netip.AddrPortFrom(rec.Addr, rec.Port).String() == at)
		})
	})
}

func TestEgressListsChange(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t, "93.184.215.1", "93.184.215.2")
		w.Set("api.example.com", "93.184.215.1")
		w.Set("other.example.com", "93.184.215.2")
		r := newRig(t, nil)
		r.start()
		b := r.restricted(1, "api.example.com", "other.example.com")
		for _, name := range []string{"api.example.com", "other.example.com"} {
			b.resolve(t, name, dnsmessage.TypeA)
		}
		kept, cut := b.dial(t, "93.184.215.1:7777"), b.dial(t, "93.184.215.2:7777")
		b = r.relist(b, "api.example.com")
		if err := kept(); err != nil {
			t.Errorf("a connection that the new list permits: %v", err)
		}
		if err := cut(); err == nil {
			t.Error("a connection that the new list does not permit goes on")
		}
		// The address of a name that stays is open without another question.
		b.reaches(t, "tcp", "93.184.215.1:80", true)
		b.reaches(t, "tcp", "93.184.215.2:80", false)

		b = r.relist(b, "internet:80", "cluster")
		b.reaches(t, "tcp", "93.184.215.2:80", true)
		b.reaches(t, "tcp", "93.184.215.2:443", false)
		b = r.relist(b, egress.None)
		b.reaches(t, "tcp", "93.184.215.1:80", false)
		b = r.relist(b, egress.Learn)
		b.resolve(t, "other.example.com", dnsmessage.TypeA)
		b.reaches(t, "tcp", "93.184.215.2:443", true)
		b.logged(t, r, egress.RecordOpened, "other.example.com", "93.184.215.2:443")
		b = r.relist(b)
		b.reaches(t, "tcp", "93.184.215.1:853", true)
		if code, addrs := b.resolve(t, "api.example.com", dnsmessage.TypeA); code != dnsmessage.RCodeSuccess || len(addrs) != 1 {
			t.Errorf("without a list api.example.com is %v %v", code, addrs)
		}
		r.down(b)
	})
}

// relist changes the list of a sandbox.
func (r *rig) relist(b box, list ...string) box {
	r.t.Helper()
	b.req.Config.Egress = list
	st, err := r.net.Restrict(r.t.Context(), b.req)
	if err != nil {
		r.t.Fatal(err)
	}
	b.req.Last = st
	return b
}

// dial connects to a server that returns its input. again sends a byte on the connection.
func (b box) dial(t *testing.T, at string) (again func() error) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	var conn net.Conn
	b.ns.Do(t, func() (err error) {
		conn, err = net.Dial("tcp", at)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return func() error {
		if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 64))
		return err
	}
}
