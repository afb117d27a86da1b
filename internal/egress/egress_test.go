package egress

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"api.example.com":                  "api.example.com",
		"API.Example.COM.:443":             "api.example.com:443",
		"*.packages.example:80,443,81-90":  "*.packages.example:80-90,443",
		"db.corp.example@private:5432/tcp": "db.corp.example@private:5432/tcp",
		"10.1.2.3":                         "10.1.2.3",
		"10.1.2.3/8:53/udp":                "10.0.0.0/8:53/udp",
		"[fd00:1::/32]:443":                "[fd00:1::/32]:443",
		"fd00::1":                          "fd00::1",
		"fd00:1::/32/tcp":                  "fd00:1::/32/tcp",
		"::ffff:192.0.2.1":                 "192.0.2.1",
		"internet:443":                     "internet:443",
		"cluster":                          "cluster",
		"192.0.2.0/24/icmp":                "192.0.2.0/24/icmp",
		"xn--bcher-kva.example":            "xn--bcher-kva.example",
		"_dns.example.com":                 "_dns.example.com",
	} {
		l, err := Parse([]string{text})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := l.Strings(); !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %v, want %s", text, got, want)
		}
		again, err := Parse(l.Strings())
		if err != nil || !slices.Equal(again.Strings(), l.Strings()) {
			t.Errorf("%s: its normal form is parsed as %v, %v", text, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                                   "is no name",
		"*":                                  "is no name",
		"*.com":                              "top-level",
		"a..b":                               "is no name",
		"a b.example":                        "is no name",
		"b\u00fccher.example":                "xn--",
		"10.0.0":                             "cannot end in a number",
		"0x7f.0x1":                           "cannot end in a number",
		"10.0.0.0/33":                        "neither a range",
		"a.example/gre":                      "neither a range",
		"a.example:0":                        "is no port",
		"a.example:90-80":                    "is no port",
		"a.example:http":                     "is no port",
		"a.example:1/icmp":                   "icmp has no ports",
		"none:80":                            "has no ports",
		"fe80::1%eth0":                       "with a zone",
		"[::1":                               "[address]:port",
		"::ffff:0:0/90":                      "as one of IPv4",
		strings.Repeat("a", 64) + ".example": "is no name",
		"a.example:" + strings.Repeat("1,3,5,7,9,", 8) + "11,13,15,17,19,21,23,25,27,29,31,33": "ranges of ports",
	} {
		if _, err := Parse([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := Parse(nil); err == nil {
		t.Error("an empty list is parsed")
	}
	if _, err := Parse([]string{"none", "internet"}); err == nil {
		t.Error("none stands beside another entry")
	}
	if _, err := Parse(make([]string, MaxEntries+1)); err == nil {
		t.Error("a list without an end is parsed")
	}
	var many []string
	for p := range MaxServices + 1 {
		many = append(many, "a.example:"+Service{Ports: []Ports{{uint16(p + 1), uint16(p + 1)}}}.String()[1:])
	}
	if _, err := Parse(many); err == nil {
		t.Error("more services than rules are made for")
	}
}

func TestName(t *testing.T) {
	l, err := Parse([]string{"api.example.com:443", "*.packages.example", "deep.packages.example:22", "db.corp.example@private"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		ok, exact, private bool
		services           int
	}{
		"api.example.com":            {ok: true, exact: true, services: 1},
		"x.api.example.com":          {},
		"example.com":                {},
		"packages.example":           {},
		"a.packages.example":         {ok: true, services: 1},
		"a.b.c.packages.example":     {ok: true, services: 1},
		"evilpackages.example":       {},
		"packages.example.evil.test": {},
		"deep.packages.example":      {ok: true, exact: true, services: 2},
		"db.corp.example":            {ok: true, exact: true, private: true, services: 1},
		"api.example.com.":           {},
		"API.example.com":            {},
		".packages.example":          {},
		"a\x00.packages.example":     {},
		"a/b.packages.example":       {},
		"":                           {},
	} {
		m, ok := l.Name(name)
		if ok != want.ok || m.Exact != want.exact || m.Private != want.private || len(m.Services) != want.services {
			t.Errorf("%q: %+v %t, want %+v", name, m, ok, want)
		}
	}
	internet, err := Parse([]string{"internet:443"})
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := internet.Name("any.example"); !ok || len(m.Services) != 0 {
		t.Errorf("a name of the internet: %+v %t", m, ok)
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		list, ceiling string
		want          bool
	}{
		{"api.example.com", "api.example.com", true},
		{"api.example.com:443", "api.example.com", true},
		{"api.example.com", "api.example.com:443", false},
		{"api.example.com:443/tcp", "api.example.com:443", true},
		{"api.example.com:443", "api.example.com:443/tcp", false},
		{"api.example.com", "*.example.com", true},
		{"*.a.example.com", "*.example.com", true},
		{"*.example.com", "*.a.example.com", false},
		{"example.com", "*.example.com", false},
		{"*.example.com", "api.example.com", false},
		{"api.example.com", "internet", true},
		{"db.corp.example@private", "internet", false},
		{"db.corp.example@private", "db.corp.example", false},
		{"db.corp.example", "db.corp.example@private", true},
		{"93.184.215.0/24", "internet", true},
		{"10.1.0.0/16", "internet", false},
		{"0.0.0.0/0", "internet", false},
		{"10.1.0.0/16", "10.0.0.0/8", true},
		{"10.0.0.0/8", "10.1.0.0/16", false},
		{"api.example.com", "0.0.0.0/0", false},
		{"10.1.0.0/16:53", "10.0.0.0/8", false},
		{"10.1.0.0/16:50-60", "10.0.0.0/8", false},
		{"10.1.0.0/16:53", "10.0.0.0/8:53", true},
		{"169.254.169.254", "169.0.0.0/8", false},
		{"169.254.169.254", "169.254.0.0/16", true},
		{"169.254.169.254", "169.254.169.254", true},
		{"fd00:ec2::254", "fd00::/8", false},
		{"cluster:80", "cluster", true},
		{"cluster", "internet", false},
		{"internet", "cluster", false},
		{"none", "api.example.com", true},
		{"192.0.2.1/icmp", "192.0.2.0/24", true},
		{"192.0.2.1/icmp", "192.0.2.0/24:80", false},
		{"192.0.2.1/sctp", "192.0.2.0/24", false},
	} {
		list, err := Parse([]string{c.list})
		ceiling, err2 := Parse([]string{c.ceiling})
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if err := list.Within(ceiling); (err == nil) != c.want {
			t.Errorf("%s within %s: %v, want %t", c.list, c.ceiling, err, c.want)
		}
	}
}

func TestAnswerable(t *testing.T) {
	for a, want := range map[string][2]bool{ // without and with @private
		"93.184.215.14": {true, true}, "2606:2800::1": {true, true},
		"10.0.0.1": {false, true}, "192.168.1.1": {false, true}, "172.16.0.1": {false, true}, "100.64.0.1": {false, true}, "fd00::1": {false, true},
		"127.0.0.1": {}, "169.254.169.254": {}, "169.254.1.1": {}, "0.0.0.0": {}, "224.0.0.1": {}, "255.255.255.255": {}, "100.100.100.200": {},
		"::1": {}, "::": {}, "fe80::1": {}, "ff02::1": {}, "::ffff:93.184.215.14": {}, "::ffff:127.0.0.1": {}, "64:ff9b::7f00:1": {}, "2002:7f00:1::": {}, "fd00:ec2::254": {},
	} {
		addr := netip.MustParseAddr(a)
		if got := [2]bool{Answerable(addr, false), Answerable(addr, true)}; got != want {
			t.Errorf("%s: %v, want %v", a, got, want)
		}
	}
}

func TestLearned(t *testing.T) {
	at := netip.MustParseAddr
	got := Learned([]Record{
		{Kind: RecordResolved, Name: "db.corp.example", Addrs: []netip.Addr{at("10.0.0.7")}},
		{Kind: RecordResolved, Name: "api.example.com", Addrs: []netip.Addr{at("93.184.215.14")}},
		{Kind: RecordOpened, Name: "api.example.com", Addr: at("93.184.215.14"), Proto: "tcp", Port: 443},
		{Kind: RecordOpened, Name: "api.example.com", Addr: at("93.184.215.15"), Proto: "tcp", Port: 80},
		{Kind: RecordOpened, Name: "api.example.com", Addr: at("93.184.215.15"), Proto: "tcp", Port: 80},
		{Kind: RecordOpened, Name: "db.corp.example", Addr: at("10.0.0.7"), Proto: "tcp", Port: 5432},
		{Kind: RecordOpened, Addr: at("2606:2800::1"), Proto: "udp", Port: 123},
		{Kind: RecordOpened, Addr: at("192.0.2.9"), Proto: "icmp"},
		{Kind: RecordRefused, Addr: at("192.0.2.10"), Proto: "tcp", Port: 1},
	})
	want := []string{"192.0.2.9/icmp", "[2606:2800::1]:123/udp", "api.example.com:80,443/tcp", "db.corp.example@private:5432/tcp"}
	if !slices.Equal(got, want) {
		t.Errorf("learned %v, want %v", got, want)
	}
	if _, err := Parse(got); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("api.example.com:443", "a.example.com")
	f.Add("[fd00::/8]:1-2/udp", "x")
	f.Add("*.b.example@private", "c.b.example")
	f.Fuzz(func(t *testing.T, entry, name string) {
		l, err := Parse([]string{entry})
		if err != nil {
			return
		}
		again, err := Parse(l.Strings())
		if err != nil || !slices.Equal(l.Strings(), again.Strings()) {
			t.Fatalf("%q: the normal form %q is parsed as %v, %v", entry, l.Strings(), again, err)
		}
		if err := l.Within(again); err != nil {
			t.Fatal(err)
		}
		m1, ok1 := l.Name(name)
		m2, ok2 := again.Name(name)
		if ok1 != ok2 || m1.Private != m2.Private {
			t.Fatalf("%q: %v %v, by its normal form %v %v", name, m1, ok1, m2, ok2)
		}
	})
}

func FuzzRecords(f *testing.F) {
	f.Add(`{"kind":"opened","addr":"192.0.2.1"}` + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := Records(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		Learned(list)
	})
}
