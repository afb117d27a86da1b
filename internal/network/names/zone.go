// Package names is the name server of user-defined networks. It runs in a process of its own,
// which outlives the agent: names resolve while the agent is dead or being replaced.
//
// Each sandbox on such a network asks 127.0.0.11, in its own network namespace. The agent (Client)
// keeps the names, opens the sockets there, and sends both to the process (Main), which answers,
// and forwards other questions to the name servers of the node or of the sandbox. It knows
// addresses and names, and no engine.
//
// Start at Answer.
package names

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Address is where sandboxes ask.
func Address() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 11}) }

// Zone has the names of one network.
type Zone struct {
	// Names has the addresses of each name, which is in lower case and without a final dot.
	Names map[string][]netip.Addr `json:"names"`
	// Owners has the name that an address is called by.
	Owners map[netip.Addr]string `json:"owners"`
}

// Equal reports whether two zones say the same.
func (z Zone) Equal(o Zone) bool {
	return maps.EqualFunc(z.Names, o.Names, slices.Equal) && maps.Equal(z.Owners, o.Owners)
}

// The sizes of messages over UDP.
const (
	minUDP = 512
	maxUDP = 4096 // limit of our answers to clients that accept as much
)

// maxAnswers bounds the addresses of one answer: more fit into no message that clients read.
const maxAnswers = 512

// ttl is how long, in seconds, an answer may be kept. A container that is started again may have
// another address.
const ttl = 5

// errIgnored is a message that gets no answer: it is none, or it is an answer itself.
var errIgnored = errors.New("not a question")

// Answer answers a question from zones. When they do not know its name it returns nil, and the
// question is for others. stream says that the answer's size does not matter.
func Answer(zones []Zone, question []byte, stream bool) ([]byte, error) {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil || head.Response {
		return nil, errIgnored
	}
	if head.OpCode != 0 {
		return reply(head, nil, dnsmessage.RCodeNotImplemented)
	}
	q, err := p.Question()
	if err != nil {
		return reply(head, nil, dnsmessage.RCodeFormatError)
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return reply(head, nil, dnsmessage.RCodeFormatError)
	}
	if q.Class != dnsmessage.ClassINET {
		return nil, nil
	}
	body, known := find(zones, q)
	if !known {
		return nil, nil
	}
	limit, edns := room(&p)
	if stream {
		limit = 1<<16 - 1
	}
	answer, err := build(head, q, body, edns)
	if err == nil && len(answer) > limit {
		// As much as the packet takes: there are resolvers that never ask again over a stream.
		head.Truncated = true
		var bare []byte
		if bare, err = build(head, q, nil, edns); err == nil {
			each := (len(answer) - len(bare)) / len(body) // all are addresses, and of one length
			answer, err = build(head, q, body[:(limit-len(bare))/each], edns)
		}
	}
	if err != nil {
		answer = refusal(question, dnsmessage.RCodeServerFailure)
	}
	return answer, nil
}

// room returns the size of the largest answer that the client takes over UDP, and whether it has
// said so.
func room(p *dnsmessage.Parser) (limit int, edns bool) {
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return minUDP, false
	}
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return minUDP, false
		}
		if h.Type == dnsmessage.TypeOPT {
			return min(max(int(h.Class), minUDP), maxUDP), true
		}
		if p.SkipAdditional() != nil {
			return minUDP, false
		}
	}
}

// find returns the resources that answer q; known is false when no zone has its name.
func find(zones []Zone, q dnsmessage.Question) (body []dnsmessage.ResourceBody, known bool) {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if a, ok := reversed(name); ok {
		for _, z := range zones {
			owner, ok := z.Owners[a]
			if !ok {
				continue
			}
			n, err := dnsmessage.NewName(owner + ".")
			if err != nil || q.Type != dnsmessage.TypePTR {
				return nil, true
			}
			return []dnsmessage.ResourceBody{&dnsmessage.PTRResource{PTR: n}}, true
		}
		return nil, false
	}
	seen := map[netip.Addr]bool{}
	for _, z := range zones {
		addrs, ok := z.Names[name]
		if !ok {
			continue
		}
		if known { // docker's name server, too, answers with the first network's alone
			break
		}
		known = true
		// Where there are more than an answer has, it is not always the same ones.
		first := 0
		if len(addrs) > maxAnswers {
			first = rand.IntN(len(addrs)) //nolint:gosec // it spreads load, and nothing is secret
		}
		for i := range addrs {
			a := addrs[(first+i)%len(addrs)]
			if seen[a] || len(body) == maxAnswers {
				continue
			}
			seen[a] = true
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				body = append(body, &dnsmessage.AResource{A: a.As4()})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				body = append(body, &dnsmessage.AAAAResource{AAAA: a.As16()})
			}
		}
	}
	// Sandboxes with the same alias share the work.
	//nolint:gosec // it spreads load, and nothing is secret
	rand.Shuffle(len(body), func(i, j int) { body[i], body[j] = body[j], body[i] })
	return body, known
}

// reversed returns the address that a name of in-addr.arpa or ip6.arpa means.
func reversed(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(rest, ".")
		if len(parts) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		return a, err == nil && a.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa")
	if !ok || len(rest) != 63 {
		return netip.Addr{}, false
	}
	var text []byte
	for i := len(rest) - 1; i >= 0; i -= 2 {
		if i > 0 && rest[i-1] != '.' {
			return netip.Addr{}, false
		}
		if n := len(text) + 1; n%5 == 0 {
			text = append(text, ':')
		}
		text = append(text, rest[i])
	}
	a, err := netip.ParseAddr(string(text))
	return a, err == nil && a.Is6() && !a.Is4In6()
}

func build(head dnsmessage.Header, q dnsmessage.Question, body []dnsmessage.ResourceBody, edns bool) ([]byte, error) {
	m := dnsmessage.Message{Header: answerTo(head, dnsmessage.RCodeSuccess), Questions: []dnsmessage.Question{q}}
	m.Authoritative, m.Truncated = true, head.Truncated
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl}
	for _, b := range body {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: b})
	}
	if edns {
		var opt dnsmessage.ResourceHeader
		if err := opt.SetEDNS0(maxUDP, dnsmessage.RCodeSuccess, false); err != nil {
			return nil, err
		}
		m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
	}
	return m.Pack()
}

func answerTo(head dnsmessage.Header, code dnsmessage.RCode) dnsmessage.Header {
	return dnsmessage.Header{ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired, RecursionAvailable: true, RCode: code}
}

func reply(head dnsmessage.Header, questions []dnsmessage.Question, code dnsmessage.RCode) ([]byte, error) {
	m := dnsmessage.Message{Header: answerTo(head, code), Questions: questions}
	return m.Pack()
}

// failed is the answer to a question that nobody could answer.
func failed(question []byte) []byte { return refusal(question, dnsmessage.RCodeServerFailure) }

// cut returns the answer that makes the client ask again over TCP.
func cut(question []byte) []byte {
	answer := refusal(question, dnsmessage.RCodeSuccess)
	if len(answer) > 2 {
		answer[2] |= 2
	}
	return answer
}

// refusal is an answer that says nothing but why.
func refusal(question []byte, why dnsmessage.RCode) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil {
		return nil
	}
	var questions []dnsmessage.Question
	if q, err := p.Question(); err == nil {
		questions = append(questions, q)
	}
	answer, err := reply(head, questions, why)
	if err != nil {
		return nil
	}
	return answer
}

// answers reports whether answer belongs to question. A client must check this, because anybody may
// send a packet.
func answers(question, answer []byte) bool {
	var p, a dnsmessage.Parser
	want, err := p.Start(question)
	have, err2 := a.Start(answer)
	if err != nil || err2 != nil || want.ID != have.ID || !have.Response {
		return false
	}
	asked, err := p.Question()
	if err != nil {
		return false
	}
	said, err := a.Question()
	return err == nil && said.Type == asked.Type && said.Class == asked.Class && strings.EqualFold(said.Name.String(), asked.Name.String())
}
