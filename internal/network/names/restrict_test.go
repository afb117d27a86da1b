package names

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/egress"
)

// opened is a gate that remembers.
type opened struct {
	list []opening
	fail error
}

func (o *opened) open(list []opening) error {
	if o.fail != nil {
		return o.fail
	}
	o.list = append(o.list, list...)
	return nil
}

func (o *opened) addrs() (list []string) {
	for _, d := range o.list {
		list = append(list, d.addr.String())
	}
	slices.Sort(list)
	return list
}

func newRestricted(t *testing.T, list ...string) (*restricted, *opened) {
	t.Helper()
	g := &opened{}
	r, err := restrict(Restriction{List: list, Cluster: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r, g
}

func pack(t *testing.T, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func aQuestion(name string, typ dnsmessage.Type) dnsmessage.Message {
	return dnsmessage.Message{Header: dnsmessage.Header{ID: 1, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET}}}
}

func record(name string, ttl uint32, body dnsmessage.ResourceBody) dnsmessage.Resource {
	typ := dnsmessage.TypeA
	switch body.(type) {
	case *dnsmessage.AAAAResource:
		typ = dnsmessage.TypeAAAA
	case *dnsmessage.CNAMEResource:
		typ = dnsmessage.TypeCNAME
	}
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET, TTL: ttl}, Body: body}
}

func v4(a string) dnsmessage.ResourceBody {
	return &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}
}

func v6(a string) dnsmessage.ResourceBody {
	return &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(a).As16()}
}

func alias(name string) dnsmessage.ResourceBody {
	return &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(name)}
}

// code asks for a name and returns the answer's code without a server, and whether the question may be forwarded.
func code(t *testing.T, r *restricted, m dnsmessage.Message) (dnsmessage.RCode, bool) {
	t.Helper()
	_, answer := r.admit(pack(t, m))
	if answer == nil {
		return 0, true
	}
	var got dnsmessage.Message
	if err := got.Unpack(answer); err != nil {
		t.Fatal(err)
	}
	return got.RCode, false
}

func TestQuestionsOfOtherNamesStay(t *testing.T) {
	r, _ := newRestricted(t, "api.example.com", "*.packages.example")
	for name, forwarded := range map[string]bool{
		"api.example.com.": true, "API.example.COM.": true, "a.packages.example.": true,
		"packages.example.": false, "example.com.": false, "secret.attacker.example.": false, "api.example.com.attacker.example.": false, ".": false,
		"a\x00.packages.example.": false, "1.0.0.127.in-addr.arpa.": false, strings.Repeat("x", 60) + "." + strings.Repeat("y", 60) + ".packages.example.": false,
	} {
		got, ok := code(t, r, aQuestion(name, dnsmessage.TypeA))
		if ok != forwarded {
			t.Errorf("%q: forwarded %t (%v), want %t", name, ok, got, forwarded)
		}
	}
	for _, c := range []struct {
		name string
		typ  dnsmessage.Type
		want bool
	}{
		{"api.example.com.", dnsmessage.TypeTXT, true},
		{"api.example.com.", typeHTTPS, false},
		{"api.example.com.", typeSVCB, false},
		{"api.example.com.", dnsmessage.TypeALL, false},
		{"a.packages.example.", dnsmessage.TypeTXT, false},
		{"a.packages.example.", 10, false},
		{"a.packages.example.", dnsmessage.TypeCNAME, true},
	} {
		if _, ok := code(t, r, aQuestion(c.name, c.typ)); ok != c.want {
			t.Errorf("%s of type %v: forwarded %t", c.name, c.typ, ok)
		}
	}
	two := aQuestion("api.example.com.", dnsmessage.TypeA)
	two.Questions = append(two.Questions, aQuestion("secret.attacker.example.", dnsmessage.TypeA).Questions...)
	chaos := aQuestion("api.example.com.", dnsmessage.TypeA)
	chaos.Questions[0].Class = dnsmessage.ClassCHAOS
	update := aQuestion("api.example.com.", dnsmessage.TypeA)
	update.OpCode = 5
	for _, m := range []dnsmessage.Message{two, chaos, update} {
		if _, ok := code(t, r, m); ok {
			t.Errorf("%+v is forwarded", m)
		}
	}
}

func TestNamesOfWildcardsAreBounded(t *testing.T) {
	r, _ := newRestricted(t, "*.packages.example")
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	passed := func(prefix string, n int) (count int) {
		for i := range n {
			if _, ok := code(t, r, aQuestion(prefix+strings.Repeat("x", i%40)+"-"+string(rune('a'+i%26))+string(rune('a'+i/26))+".packages.example.", dnsmessage.TypeA)); ok {
				count++
			}
		}
		return count
	}
	if n := passed("a", 500); n != newNames {
		t.Errorf("%d new names at once, want %d", n, newNames)
	}
	now = now.Add(2 * time.Second)
	if n := passed("b", 100); n != 2*newRate {
		t.Errorf("%d new names in two seconds, want %d", n, 2*newRate)
	}
	now = now.Add(time.Second)
	for range 3 * newRate {
		if _, ok := code(t, r, aQuestion("same.packages.example.", dnsmessage.TypeA)); !ok {
			t.Fatal("a name that was asked before is refused")
		}
	}
}

func TestAnswersAreOpenBeforeTheyArePassedOn(t *testing.T) {
	const api = "api.example.com."
	for name, c := range map[string]struct {
		list    []string
		typ     dnsmessage.Type
		answers []dnsmessage.Resource
		open    []string
		rcode   dnsmessage.RCode
		passed  int
	}{
		"an address":                     {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("93.184.215.1"))}, []string{"93.184.215.1"}, 0, 1},
		"of IPv6":                        {[]string{"api.example.com"}, dnsmessage.TypeAAAA, []dnsmessage.Resource{record(api, 60, v6("2606:2800::1"))}, []string{"2606:2800::1"}, 0, 1},
		"an alias":                       {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, alias("edge.cdn.example.")), record("edge.cdn.example.", 60, v4("93.184.215.1"))}, []string{"93.184.215.1"}, 0, 2},
		"another name's address":         {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("93.184.215.1")), record("evil.example.", 60, v4("93.184.215.9"))}, []string{"93.184.215.1"}, 0, 1},
		"only another name's":            {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record("evil.example.", 60, v4("93.184.215.9"))}, nil, 0, 0},
		"an endless alias":               {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, alias("b.example.")), record("b.example.", 60, alias(api))}, nil, 0, 0},
		"a private address":              {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("10.1.2.3"))}, nil, dnsmessage.RCodeNameError, 0},
		"one private address":            {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("10.1.2.3")), record(api, 60, v4("93.184.215.1"))}, []string{"93.184.215.1"}, 0, 1},
		"a permitted private one":        {[]string{"api.example.com@private"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("10.1.2.3"))}, []string{"10.1.2.3"}, 0, 1},
		"one of a range":                 {[]string{"api.example.com", "10.1.0.0/16"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("10.1.2.3"))}, nil, 0, 1},
		"one of the cluster":             {[]string{"api.example.com", "cluster"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("10.5.2.3"))}, nil, 0, 1},
		"metadata":                       {[]string{"api.example.com@private"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("169.254.169.254"))}, nil, dnsmessage.RCodeNameError, 0},
		"loopback":                       {[]string{"api.example.com@private"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("127.0.0.1"))}, nil, dnsmessage.RCodeNameError, 0},
		"a mapped address":               {[]string{"api.example.com@private"}, dnsmessage.TypeAAAA, []dnsmessage.Resource{record(api, 60, v6("::ffff:10.1.2.3"))}, nil, dnsmessage.RCodeNameError, 0},
		"an address of the other family": {[]string{"api.example.com"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v6("2606:2800::1"))}, nil, 0, 0},
		"any name of the internet":       {[]string{"internet:443"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("93.184.215.1"))}, nil, 0, 1},
		"a private one, though":          {[]string{"internet:443"}, dnsmessage.TypeA, []dnsmessage.Resource{record(api, 60, v4("10.1.2.3"))}, nil, dnsmessage.RCodeNameError, 0},
	} {
		r, g := newRestricted(t, c.list...)
		question := pack(t, aQuestion(api, c.typ))
		q, refused := r.admit(question)
		if refused != nil {
			t.Errorf("%s: refused", name)
			continue
		}
		answer := aQuestion(api, c.typ)
		answer.Response, answer.Answers = true, c.answers
		var got dnsmessage.Message
		if err := got.Unpack(r.pass(q, question, pack(t, answer), false)); err != nil {
			t.Fatal(err)
		}
		if got.RCode != c.rcode || len(got.Answers) != c.passed || !slices.Equal(g.addrs(), c.open) {
			t.Errorf("%s: code %v, %d records, open %v; want %v, %d, %v", name, got.RCode, len(got.Answers), g.addrs(), c.rcode, c.passed, c.open)
		}
	}
}

func TestAnAddressStaysOpenForTheTimeOfItsAnswer(t *testing.T) {
	r, g := newRestricted(t, "api.example.com")
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	ask := func(ttl uint32) dnsmessage.Message {
		question := pack(t, aQuestion("api.example.com.", dnsmessage.TypeA))
		q, _ := r.admit(question)
		answer := aQuestion("api.example.com.", dnsmessage.TypeA)
		answer.Response, answer.Answers = true, []dnsmessage.Resource{record("api.example.com.", ttl, v4("93.184.215.1"))}
		var got dnsmessage.Message
		if err := got.Unpack(r.pass(q, question, pack(t, answer), false)); err != nil {
			t.Fatal(err)
		}
		return got
	}
	ask(0)
	if len(g.list) != 1 || g.list[0].hold != minOpen || g.list[0].again {
		t.Fatalf("opened %+v", g.list)
	}
	ask(0)
	if len(g.list) != 1 {
		t.Error("what is open is opened again")
	}
	now = now.Add(minOpen/2 + time.Second)
	ask(0)
	if len(g.list) != 2 || !g.list[1].again {
		t.Errorf("it is not opened for longer: %+v", g.list)
	}
	if got := ask(1 << 31); got.Answers[0].Header.TTL != uint32(maxTTL.Seconds()) || g.list[2].hold != maxTTL+minOpen {
		t.Errorf("an answer for ever is kept for %d s, and open for %v", got.Answers[0].Header.TTL, g.list[2].hold)
	}
	g.fail = errors.New("no")
	now = now.Add(2 * maxTTL)
	if got := ask(0); got.RCode != dnsmessage.RCodeServerFailure || len(got.Answers) > 0 {
		t.Errorf("an address that could not be opened is passed on: %+v", got)
	}
	r.gate = nil
	if got := ask(0); got.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("without the rules' socket: %+v", got)
	}
}

func TestANewListTakesOverWhatItHas(t *testing.T) {
	old, g := newRestricted(t, "api.example.com:443", "other.example.com")
	if err := old.openAll("api.example.com", []opening{{destination{netip.MustParseAddr("93.184.215.1"), 0}, time.Hour, false}}); err != nil {
		t.Fatal(err)
	}
	if err := old.openAll("other.example.com", []opening{{destination{netip.MustParseAddr("93.184.215.2"), 1}, time.Hour, false}}); err != nil {
		t.Fatal(err)
	}
	g.list = nil
	next, err := restrict(Restriction{List: []string{"api.example.com:80"}}, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	next.takeOver(old)
	if !slices.Equal(g.addrs(), []string{"93.184.215.1"}) {
		t.Errorf("open are %v", g.addrs())
	}
}

func TestTheJournalIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	j := newJournal(f)
	now := time.Unix(1000, 0)
	j.now = func() time.Time { return now }
	for range 5 {
		j.refusedName("same.example", "not in the list")
	}
	now = now.Add(repeatAfter)
	j.refusedName("same.example", "not in the list")
	list := readJournal(t, path)
	if len(list) != 2 || list[1].Count != 5 {
		t.Fatalf("six equal refusals are %+v", list)
	}
	for i := range 20_000 {
		j.refusedName(strings.Repeat("x", 60)+"."+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676))+".example", "not in the list")
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxJournal {
		t.Errorf("the journal has %d bytes, %v", info.Size(), err)
	}
	if list := readJournal(t, path); len(list) < 1000 || !strings.HasPrefix(list[len(list)-1].Name, "xxx") {
		t.Errorf("%d records are left", len(list))
	}
}

func readJournal(t *testing.T, path string) []egress.Record {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	list, err := egress.Records(f)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// FuzzRestricted passes a server's answer to a sandbox. Only answerable addresses may be opened.
func FuzzRestricted(f *testing.F) {
	m := aQuestion("api.example.com.", dnsmessage.TypeA)
	question, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	m.Response, m.Answers = true, []dnsmessage.Resource{record("api.example.com.", 60, alias("b.example.")), record("b.example.", 60, v4("93.184.215.1")), record("b.example.", 60, v4("10.0.0.1"))}
	answer, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(question, answer)
	f.Fuzz(func(t *testing.T, question, answer []byte) {
		g := &opened{}
		r, err := restrict(Restriction{List: []string{"api.example.com:443", "*.packages.example"}}, g, nil)
		if err != nil {
			t.Fatal(err)
		}
		q, refused := r.admit(question)
		if refused != nil {
			return
		}
		r.pass(q, question, answer, false)
		for _, o := range g.list {
			if !egress.Answerable(o.addr, false) {
				t.Fatalf("%s is open", o.addr)
			}
		}
	})
}

func FuzzReports(f *testing.F) {
	f.Add([]byte{69, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 93, 184, 215, 1, 0, 1, 1, 187})
	f.Fuzz(func(_ *testing.T, b []byte) {
		readReports(b)
		_, _, _, _ = readPacket(b)
	})
}
