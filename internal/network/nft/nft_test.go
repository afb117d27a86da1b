package nft

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
)

func TestLegacyMissing(t *testing.T) {
	for _, tc := range []struct {
		name, list string
		want       [][]string
	}{
		{"accepts", "-P FORWARD ACCEPT\n", nil},
		{"drops", "-P FORWARD DROP\n", [][]string{{"-A", "FORWARD", "-i", "br", "-j", "ACCEPT"}, {"-A", "FORWARD", "-o", "br", "-j", "ACCEPT"}}},
		{"done", "-P FORWARD DROP\n-A FORWARD -i br -j ACCEPT\n-A FORWARD -o br -j ACCEPT\n", nil},
		{"half done", "-P FORWARD DROP\n-A FORWARD -i br -j ACCEPT\n", [][]string{{"-A", "FORWARD", "-o", "br", "-j", "ACCEPT"}}},
		{"another bridge", "-P FORWARD DROP\n-A FORWARD -i br0 -j ACCEPT\n-A FORWARD -o br0 -j ACCEPT\n", [][]string{{"-A", "FORWARD", "-i", "br", "-j", "ACCEPT"}, {"-A", "FORWARD", "-o", "br", "-j", "ACCEPT"}}},
		{
			"behind a reject", "-P FORWARD ACCEPT\n-A FORWARD -s 10.0.0.0/8 -j DROP\n-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n-A FORWARD -i br -j ACCEPT\n-A FORWARD -o br -j ACCEPT\n",
			[][]string{{"-I", "FORWARD", "2", "-i", "br", "-j", "ACCEPT"}, {"-I", "FORWARD", "2", "-o", "br", "-j", "ACCEPT"}},
		},
		{"with a condition", "-P FORWARD ACCEPT\n-A FORWARD -i eth0 -j DROP\n", nil},
		{"nothing", "", nil},
	} {
		if diff := cmp.Diff(tc.want, legacyMissing(tc.list, "br")); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}

func TestAlways(t *testing.T) {
	verdict := func(k expr.VerdictKind) *expr.Verdict { return &expr.Verdict{Kind: k, Chain: "to"} }
	for _, tc := range []struct {
		name  string
		exprs []expr.Any
		want  ending
	}{
		{"drop", []expr.Any{verdict(expr.VerdictDrop)}, endDrop},
		{"counted and logged", []expr.Any{&expr.Counter{}, &expr.Log{}, &expr.Reject{}}, endDrop},
		{"old reject", []expr.Any{&expr.Match{Name: "comment"}, &expr.Target{Name: "REJECT"}}, endDrop},
		{"old log", []expr.Any{&expr.Target{Name: "LOG"}}, endNone},
		{"old mark", []expr.Any{&expr.Target{Name: "MARK"}, verdict(expr.VerdictDrop)}, endNone},
		{"accept", []expr.Any{verdict(expr.VerdictAccept)}, endAccept},
		{"jump", []expr.Any{verdict(expr.VerdictJump)}, endJump},
		{"goto", []expr.Any{verdict(expr.VerdictGoto)}, endJump},
		{"return", []expr.Any{verdict(expr.VerdictReturn)}, endNone},
		{"with a condition", append(ifname(expr.MetaKeyIIFNAME, "eth0"), verdict(expr.VerdictDrop)), endNone},
		{"with an old condition", []expr.Any{&expr.Match{Name: "conntrack"}, verdict(expr.VerdictDrop)}, endNone},
		{"nothing", nil, endNone},
	} {
		if got, _ := always(tc.exprs); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestAcceptOf(t *testing.T) {
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
		if got, ok := acceptOf(accept(key, "longshore0"), "longshore0"); !ok || got != key {
			t.Errorf("does not know its own accept: %v %v", got, ok)
		}
		if _, ok := acceptOf(accept(key, "longshore01"), "longshore0"); ok {
			t.Error("takes another bridge's for its own")
		}
	}
	// An interface name longshore0* of another program: a prefix match has no end.
	wild := accept(expr.MetaKeyIIFNAME, "longshore0")
	wild[1] = &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("longshore0")}
	if _, ok := acceptOf(wild, "longshore0"); ok {
		t.Error("takes a wildcard for its own")
	}
}

func TestElement(t *testing.T) {
	f := Forward{Proto: 6, HostIP: netip.MustParseAddr("127.0.0.1"), Port: 8080, Target: netip.MustParseAddrPort("10.0.0.2:80"), Sandbox: "id"}
	e := f.element()
	if diff := cmp.Diff([]byte{127, 0, 0, 1, 6, 0, 0, 0, 0x1f, 0x90, 0, 0}, e.Key); diff != "" {
		t.Errorf("key: %s", diff)
	}
	if diff := cmp.Diff([]byte{10, 0, 0, 2, 0, 80, 0, 0}, e.Val); diff != "" {
		t.Errorf("value: %s", diff)
	}
}

func TestIntervals(t *testing.T) {
	got := intervals([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix("255.255.255.0/24")}, true)
	if len(got) != 3 || string(got[1].Key) != string([]byte{10, 1, 0, 0}) || !got[1].IntervalEnd {
		t.Errorf("%v", got)
	}
}
