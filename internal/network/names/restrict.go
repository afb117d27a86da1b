package names

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/egress"
)

// Restriction is the egress list of a sandbox. Its name server answers questions of the list's names only, and opens their
// addresses in the sandbox's rules before it answers.
type Restriction struct {
	List    []string       `json:"list"`
	Cluster []netip.Prefix `json:"cluster,omitempty"` // the addresses of the preset cluster
	// Learn says that every name is answered and recorded, and that all connections are open.
	Learn bool `json:"learn,omitempty"`
	// Built is the time when the agent made the rules again, without an address of a name; 0: it has not.
	Built int64 `json:"built,omitempty"`
}

// The bounds of a restricted sandbox.
const (
	minOpen   = 2 * time.Minute // the address of a name stays open at least so long, also for clients that keep answers longer
	maxTTL    = time.Hour       // of an answer; the address stays open for minOpen more
	maxOpened = 1 << 14         // addresses that are open at once
	maxChain  = 8               // aliases in one answer
	// A wildcard permits names that nobody has written down, and each one carries data to the servers of its domain.
	maxBelow  = 100 // bytes of a name before its wildcard's
	newNames  = 200 // different names by wildcards at once; then newRate each second
	newRate   = 5
	maxRecent = 1024
)

// restricted filters the questions and answers of one sandbox.
type restricted struct {
	list   *egress.List
	wanted Restriction
	gate   opener
	log    *journal
	now    func() time.Time
	again  bool // the kernel may have addresses that another process has opened

	mu     sync.Mutex // guards opened, answers, recent, tokens, filled
	opened map[destination]until
	// answers has the addresses of names, each with the time when it ends. It is for egress.VerifySNI.
	answers map[answer]time.Time
	recent  map[string]time.Time // the latest questions of names by wildcards
	tokens  float64
	filled  time.Time
}

// destination is an address in the set of a service.
type destination struct {
	addr    netip.Addr
	service int
}

// answer is an address of a name.
type answer struct {
	name string
	addr netip.Addr
}

// until is how long a destination is open, and the name that opened it.
type until struct {
	end  time.Time
	name string
}

// opener opens destinations in the kernel, until the time of each one.
type opener interface {
	open(list []opening) error
}

type opening struct {
	destination
	hold time.Duration
	// again says that the kernel may have it already.
	again bool
}

// lists has parsed lists by their entries: most sandboxes of a node have equal ones.
type lists struct {
	mu  sync.Mutex // guards all
	all map[string]*egress.List
}

var parsed lists

// maxLists bounds the parsed lists that are kept for further sandboxes.
const maxLists = 64

func (l *lists) get(entries []string) (*egress.List, error) {
	key := strings.Join(entries, " ")
	l.mu.Lock()
	defer l.mu.Unlock()
	if list, ok := l.all[key]; ok {
		return list, nil
	}
	list, err := egress.Parse(entries)
	if err != nil {
		return nil, err
	}
	if l.all == nil || len(l.all) >= maxLists {
		l.all = map[string]*egress.List{}
	}
	l.all[key] = list
	return list, nil
}

// restrict returns the filter of a restriction. gate is nil until the agent has sent the socket: nothing is opened, and
// nothing answered, before.
func restrict(w Restriction, gate opener, log *journal) (*restricted, error) {
	list, err := parsed.get(w.List)
	if err != nil {
		return nil, err
	}
	return &restricted{list: list, wanted: w, gate: gate, log: log, now: time.Now, opened: map[destination]until{}, answers: map[answer]time.Time{}, recent: map[string]time.Time{}, tokens: newNames}, nil
}

// asked is a parsed question of a restricted sandbox.
type asked struct {
	dnsmessage.Question
	head  dnsmessage.Header
	name  string
	match egress.Match
}

// admit decides about a question. A refused one has its answer.
func (r *restricted) admit(question []byte) (q asked, answer []byte) {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil || head.Response {
		return q, []byte{}
	}
	one, err := p.Question()
	if err != nil || head.OpCode != 0 || one.Class != dnsmessage.ClassINET {
		return q, refusal(question, dnsmessage.RCodeNotImplemented)
	}
	q = asked{Question: one, head: head, name: strings.ToLower(strings.TrimSuffix(one.Name.String(), "."))}
	if _, err := p.Question(); err == nil {
		return q, refusal(question, dnsmessage.RCodeFormatError)
	}
	if r.wanted.Learn {
		q.match.Exact = true
		return q, nil
	}
	match, ok := r.list.Name(q.name)
	if q.match = match; !ok {
		r.log.refusedName(q.name, "not in the list")
		return q, denied(head, one)
	}
	if !match.Exact && !r.mayAsk(q.name) {
		r.log.refusedName(q.name, "too many or too long names of a wildcard")
		return q, refusal(question, dnsmessage.RCodeRefused)
	}
	switch one.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME:
	case typeHTTPS, typeSVCB, dnsmessage.TypeALL: // they carry addresses that would not be open
		return q, refusal(question, dnsmessage.RCodeSuccess)
	default:
		if !match.Exact {
			return q, refusal(question, dnsmessage.RCodeSuccess)
		}
	}
	return q, nil
}

// Types of records that the library has no names of.
const (
	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
)

// mayAsk reports whether the budget permits a question of a name by a wildcard.
func (r *restricted) mayAsk(name string) bool {
	base := 0
	for _, e := range r.list.Entries {
		if e.Wildcard && strings.HasSuffix(name, "."+e.Name) {
			base = max(base, len(e.Name)+1)
		}
	}
	if len(name)-base > maxBelow {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if _, ok := r.recent[name]; ok {
		return true
	}
	r.tokens = min(newNames, r.tokens+now.Sub(r.filled).Seconds()*newRate)
	r.filled = now
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	if len(r.recent) >= maxRecent {
		clear(r.recent)
	}
	r.recent[name] = now
	return true
}

// denied answers that a name does not exist, with the reason for people (RFC 8914).
func denied(head dnsmessage.Header, q dnsmessage.Question) []byte {
	m := dnsmessage.Message{Header: answerTo(head, dnsmessage.RCodeNameError), Questions: []dnsmessage.Question{q}}
	var opt dnsmessage.ResourceHeader
	if opt.SetEDNS0(maxUDP, dnsmessage.RCodeSuccess, false) == nil {
		const extendedError, filtered = 15, 17
		text := "not in the sandbox's egress list"
		m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: extendedError, Data: append([]byte{0, filtered}, text...)}}}}}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}

// pass returns the answer that the sandbox gets of one that a server or a zone gave. The addresses in it are open then.
// own says that it came from a zone of the sandbox's networks.
func (r *restricted) pass(q asked, question, answer []byte, own bool) []byte {
	if q.Type != dnsmessage.TypeA && q.Type != dnsmessage.TypeAAAA {
		return answer
	}
	var p dnsmessage.Parser
	head, err := p.Start(answer)
	if err != nil || p.SkipAllQuestions() != nil {
		return failed(question)
	}
	if head.Truncated {
		return cut(question)
	}
	if head.RCode != dnsmessage.RCodeSuccess {
		return refusal(question, head.RCode)
	}
	records, err := p.AllAnswers()
	if err != nil {
		return failed(question)
	}
	chain, addrs := follow(q.Name.String(), q.Type, records)
	m := dnsmessage.Message{Header: answerTo(q.head, dnsmessage.RCodeSuccess), Questions: []dnsmessage.Question{q.Question}}
	for _, rec := range chain {
		rec.Header.TTL = min(rec.Header.TTL, uint32(maxTTL.Seconds()))
		m.Answers = append(m.Answers, rec)
	}
	var list []opening
	hidden := 0
	for _, rec := range addrs {
		a, _ := addressOf(rec)
		rec.Header.TTL = min(rec.Header.TTL, uint32(maxTTL.Seconds()))
		hold := minOpen + time.Duration(rec.Header.TTL)*time.Second
		switch {
		case r.wanted.Learn || r.listed(a):
		case !egress.Answerable(a, q.match.Private || own):
			hidden++
			r.log.refusedAddress(q.name, a)
			continue
		default:
			for _, s := range q.match.Services {
				list = append(list, opening{destination{a, s}, hold, false})
			}
		}
		m.Answers = append(m.Answers, rec)
	}
	if hidden > 0 && hidden == len(addrs) {
		return denied(q.head, q.Question)
	}
	if err := r.openAll(q.name, list); err != nil {
		r.log.refusedName(q.name, err.Error())
		return failed(question)
	}
	r.remember(q.name, list)
	if len(addrs) > hidden {
		r.log.resolved(q.name, m.Answers)
	}
	packed, err := m.Pack()
	if err != nil {
		return failed(question)
	}
	return packed
}

// listed reports whether the rules have an address already, by a range.
func (r *restricted) listed(a netip.Addr) bool {
	for _, e := range r.list.Entries {
		if e.Net.IsValid() && e.Net.Contains(a) || e.Preset == egress.Internet && egress.Answerable(a, false) {
			return true
		}
	}
	return r.cluster() && slices.ContainsFunc(r.wanted.Cluster, func(p netip.Prefix) bool { return p.Contains(a) })
}

// cluster reports whether the list has the names and addresses of the sandbox's own networks.
func (r *restricted) cluster() bool {
	return r.wanted.Learn || slices.ContainsFunc(r.list.Entries, func(e egress.Entry) bool { return e.Preset == egress.Cluster })
}

// follow returns the aliases that lead from a name to its addresses, and these. Other records are not part of the answer:
// a server could slip in those of any name.
func follow(name string, typ dnsmessage.Type, records []dnsmessage.Resource) (chain, addrs []dnsmessage.Resource) {
	for range maxChain {
		next := ""
		for _, rec := range records {
			if !strings.EqualFold(rec.Header.Name.String(), name) || rec.Header.Class != dnsmessage.ClassINET {
				continue
			}
			if _, ok := addressOf(rec); ok && rec.Header.Type == typ {
				addrs = append(addrs, rec)
			}
			if c, ok := rec.Body.(*dnsmessage.CNAMEResource); ok && next == "" {
				next = c.CNAME.String()
				chain = append(chain, rec)
			}
		}
		if len(addrs) > 0 || next == "" {
			return chain, addrs
		}
		name = next
	}
	return nil, nil
}

func addressOf(rec dnsmessage.Resource) (netip.Addr, bool) {
	switch b := rec.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A), true
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA), true
	}
	return netip.Addr{}, false
}

// openAll opens destinations that are not open, or not for long enough.
func (r *restricted) openAll(name string, list []opening) error {
	if len(list) == 0 {
		return nil
	}
	if r.gate == nil {
		return errNoGate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var missing []opening
	for _, o := range list {
		have, ok := r.opened[o.destination]
		if ok && have.end.Sub(now) >= o.hold-minOpen/2 {
			continue
		}
		o.again = ok || r.again
		missing = append(missing, o)
	}
	if len(missing) == 0 {
		return nil
	}
	if len(r.opened)+len(missing) > maxOpened {
		for d, u := range r.opened {
			if u.end.Before(now) {
				delete(r.opened, d)
			}
		}
		if len(r.opened)+len(missing) > maxOpened {
			return errManyOpen
		}
	}
	if err := r.gate.open(missing); err != nil {
		return err
	}
	for _, o := range missing {
		r.opened[o.destination] = until{now.Add(o.hold), name}
	}
	return nil
}

// takeOver opens the addresses of an earlier filter of the sandbox again, if this list permits their names.
func (r *restricted) takeOver(old *restricted) {
	old.mu.Lock()
	byName := map[string][]opening{}
	now := r.now()
	for d, u := range old.opened {
		if hold := u.end.Sub(now); hold > 0 {
			byName[u.name] = append(byName[u.name], opening{destination{d.addr, 0}, hold, false})
		}
	}
	old.mu.Unlock()
	for name, list := range byName {
		match, ok := r.list.Name(name)
		if !ok {
			continue
		}
		var again []opening
		for _, o := range list {
			for _, s := range match.Services {
				if o.service = s; egress.Answerable(o.addr, match.Private) {
					again = append(again, o)
				}
			}
		}
		if err := r.openAll(name, again); err != nil {
			r.log.refusedName(name, err.Error())
		}
	}
	r.takeAnswers(old)
}
