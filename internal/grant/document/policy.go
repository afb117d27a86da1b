package document

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/grant"
)

// Policy is what an operator allows, by whose program it is.
type Policy struct {
	rules []rule
}

// Subject is whose program it is.
type Subject struct {
	Owner     string // the face: "cri", "nomad", …
	Namespace string // Kubernetes', Nomad's; "" where there is none
	Image     string // the reference by which the request names it
}

type rule struct {
	who   Subject // patterns, in which * stands for any text; "" matches everybody
	allow *grant.Set
}

// ParsePolicy reads a policy file:
//
//	rules:
//	- for: {owner: cri, namespace: web, image: "registry.example/*"}   # each key may be left out
//	  allow: [!container_log , !mount {path: /data, rights: read}, !listen {tcp: 1024-65535}, !env "*"]
//
// A program may have what the rules that are for it allow together, and nothing if no rule is for it.
func ParsePolicy(data []byte) (*Policy, error) {
	root, err := read(data)
	if err != nil {
		return nil, err
	}
	r := reader{left: grant.MaxNodes, pattern: true}
	fields, err := r.fieldsOf(root, "the policy", "rules")
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
	return p, nil
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
		for key, to := range map[string]*string{"owner": &out.who.Owner, "namespace": &out.who.Namespace, "image": &out.who.Image} {
			at := names[key]
			if at == nil {
				continue
			}
			if !isString(at) || at.Value == "" {
				return out, grant.Errorf(place(at), "%s must be a string", key)
			}
			*to = at.Value
		}
	}
	allow := fields["allow"]
	if allow == nil || allow.Kind != yaml.SequenceNode {
		return out, grant.Errorf(place(n), "a rule needs a list of what it allows")
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

// For returns what s may have.
func (p *Policy) For(s Subject) *grant.Set {
	all := grant.NewSet()
	for _, r := range p.rules {
		if matches(r.who.Owner, s.Owner) && matches(r.who.Namespace, s.Namespace) && matches(r.who.Image, s.Image) {
			all = all.Join(r.allow)
		}
	}
	return all
}

// Matches reports whether text is as pattern says: * stands for any text, also none and with slashes.
func matches(pattern, text string) bool {
	if pattern == "" {
		return true
	}
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		_, after, ok := strings.Cut(text, part)
		if !ok {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}
