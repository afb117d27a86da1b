package document

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/board"
)

// Policy has an operator's limits for programs.
type Policy struct {
	rules []rule
	board board.Rules
}

// Subject identifies a program.
type Subject struct {
	Owner     string // the face: "cri", "nomad", …
	Namespace string // Kubernetes', Nomad's; "" where there is none
	Image     string // the reference in the request
}

type rule struct {
	who   Subject // patterns, with * for any text; "" matches everybody
	allow *grant.Set
}

// ParsePolicy reads a policy file:
//
//	rules:
//	- for: {owner: cri, namespace: web, image: "registry.example/*"}   # each key may be left out
//	  allow: [!container_log , !mount {path: /data, rights: read}, !listen {tcp: 1024-65535}, !env "*"]
//	board:
//	- client: {owner: cri, namespace: ops}
//	  server: {namespace: "web-*"}
//
// A program may have the grants that its rules allow together, and nothing if no rule matches it. On the board such
// clients may reach such servers, too, beside those of their own owner and namespace.
func ParsePolicy(data []byte) (*Policy, error) {
	root, err := read(data)
	if err != nil {
		return nil, err
	}
	r := reader{left: grant.MaxNodes, pattern: true}
	fields, err := r.fieldsOf(root, "the policy", "rules", "board")
	if err != nil {
		return nil, err
	}
	p := &Policy{}
	rules := fields["rules"]
	if rules == nil || rules.Kind != yaml.SequenceNode {
		return nil, grant.Errorf(place(root), "the policy needs a list of rules")
	}
	for _, n := range rules.Content {
		rule, err := r.rule(deref(n))
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, rule)
	}
	p.board, err = r.board(fields["board"])
	return p, err
}

func (r *reader) fieldsOf(n *yaml.Node, what string, allowed ...string) (map[string]*yaml.Node, error) {
	if n.Kind != yaml.MappingNode || n.Style&yaml.TaggedStyle != 0 {
		return nil, grant.Errorf(place(n), "%s must be a mapping of %s", what, strings.Join(allowed, ", "))
	}
	return r.fields(n, allowed...)
}

func (r *reader) rule(n *yaml.Node) (rule, error) {
	var out rule
	fields, err := r.fieldsOf(n, "a rule", "for", "allow")
	if err != nil {
		return out, err
	}
	if who := fields["for"]; who != nil {
		names, err := r.fieldsOf(who, "for", "owner", "namespace", "image")
		if err != nil {
			return out, err
		}
		if err := texts(names, map[string]*string{"owner": &out.who.Owner, "namespace": &out.who.Namespace, "image": &out.who.Image}); err != nil {
			return out, err
		}
	}
	allow := fields["allow"]
	if allow == nil || allow.Kind != yaml.SequenceNode {
		return out, grant.Errorf(place(n), "a rule needs a list of allowed grants")
	}
	var patterns []grant.Pattern
	for _, item := range allow.Content {
		item = deref(item)
		if r.left--; r.left < 0 {
			return out, grant.Errorf(place(item), "more than %d nodes, those that aliases repeat counted each time", grant.MaxNodes)
		}
		kind, ok, err := kindOf(item)
		if err != nil {
			return out, err
		}
		if !ok {
			return out, grant.Errorf(place(item), "a rule allows grants, such as !container_log, not values")
		}
		p, err := r.grant(kind, item)
		if err != nil {
			return out, err
		}
		patterns = append(patterns, p)
	}
	out.allow = grant.NewSet(patterns...)
	return out, nil
}

// texts reads the strings of a mapping; each may be missing.
func texts(fields map[string]*yaml.Node, to map[string]*string) error {
	for key, text := range to {
		at := fields[key]
		if at == nil {
			continue
		}
		if !isString(at) || at.Value == "" {
			return grant.Errorf(place(at), "%s must be a string", key)
		}
		*text = at.Value
	}
	return nil
}

// board reads the board's rules between realms.
func (r *reader) board(n *yaml.Node) (rules board.Rules, err error) {
	if n == nil {
		return nil, nil
	}
	if n.Kind != yaml.SequenceNode {
		return nil, grant.Errorf(place(n), "board must be a list of rules with client and server")
	}
	for _, item := range n.Content {
		fields, err := r.fieldsOf(deref(item), "a rule of the board", "client", "server")
		if err != nil {
			return nil, err
		}
		var rule board.Rule
		for key, realm := range map[string]*board.Realm{"client": &rule.Client, "server": &rule.Server} {
			at := fields[key]
			if at == nil { // opening to everybody must be explicit
				return nil, grant.Errorf(place(item), "a rule of the board needs client and server; {} is all")
			}
			names, err := r.fieldsOf(at, key, "owner", "namespace")
			if err != nil {
				return nil, err
			}
			if err := texts(names, map[string]*string{"owner": &realm.Owner, "namespace": &realm.Namespace}); err != nil {
				return nil, err
			}
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// Board returns the board's rules beyond a program's own owner and namespace.
func (p *Policy) Board() board.Rules { return p.board }

// For returns the limits of s.
func (p *Policy) For(s Subject) *grant.Set {
	all := grant.NewSet()
	for _, r := range p.rules {
		if grant.Matches(r.who.Owner, s.Owner) && grant.Matches(r.who.Namespace, s.Namespace) && grant.Matches(r.who.Image, s.Image) {
			all = all.Join(r.allow)
		}
	}
	return all
}
