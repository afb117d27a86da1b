package document

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/grant"
)

// longForm is how Scuba's tags began, before a %TAG directive made them short.
const longForm = "tag:nuxi.nl,2015:cloudabi/kubernetes/"

// KindOf returns the grant that a node's tag asks for, and false for a value. All other tags are errors.
func kindOf(n *yaml.Node) (grant.Kind, bool, error) {
	if n.Style&yaml.TaggedStyle == 0 {
		return "", false, nil
	}
	tag := n.ShortTag()
	name, ok := strings.CutPrefix(tag, longForm)
	if !ok {
		if strings.HasPrefix(tag, "!!") {
			return "", false, checkShape(n, tag)
		}
		if tag == "!" {
			return "", false, nil
		}
		if name, ok = strings.CutPrefix(tag, "!"); !ok {
			return "", false, unknownTag(n)
		}
	}
	if kind := grant.Kind(name); slices.Contains(grant.Kinds(), kind) {
		return kind, true, nil
	}
	return "", false, unknownTag(n)
}

// CheckShape refuses a tag of YAML's own at a node of another shape.
func checkShape(n *yaml.Node, tag string) error {
	shape, ok := map[string]yaml.Kind{
		"!!map": yaml.MappingNode, "!!seq": yaml.SequenceNode, "!!str": yaml.ScalarNode, "!!int": yaml.ScalarNode,
		"!!float": yaml.ScalarNode, "!!bool": yaml.ScalarNode, "!!null": yaml.ScalarNode, "!!binary": yaml.ScalarNode,
	}[tag]
	switch {
	case !ok:
		return unknownTag(n)
	case shape != n.Kind:
		return grant.Errorf(place(n), "tag %s does not fit here", tag)
	}
	return nil
}

func unknownTag(n *yaml.Node) error {
	names := make([]string, 0, len(grant.Kinds()))
	for _, k := range grant.Kinds() {
		names = append(names, "!"+string(k))
	}
	return grant.Errorf(place(n), "unknown tag %s; there are %s", short(n.Tag), strings.Join(names, ", "))
}

// Grant reads the value behind the tag of a grant.
func (r *reader) grant(kind grant.Kind, n *yaml.Node) (grant.Pattern, error) {
	p := grant.Pattern{Grant: grant.Grant{Kind: kind}}
	var err error
	switch kind {
	case grant.Log:
		// Scuba took any scalar and looked at none.
		if n.Kind != yaml.ScalarNode {
			err = grant.Errorf(place(n), "!%s takes no value", kind)
		}
	case grant.Random, grant.Clock, grant.Shutdown:
		if n.Kind != yaml.ScalarNode || !nullText.MatchString(n.Value) {
			err = grant.Errorf(place(n), "!%s takes no value", kind)
		}
	case grant.Env, grant.Secret:
		p.Name, err = r.name(kind, n)
	case grant.Mount:
		err = r.mount(&p, n)
	case grant.Listen:
		err = r.listen(&p, n)
	case grant.Server, grant.Client:
		p.Labels, err = r.labels(n)
	}
	return p, err
}

// Name reads the name of a variable or secret.
func (r *reader) name(kind grant.Kind, n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode {
		return "", grant.Errorf(place(n), "!%s takes a name", kind)
	}
	switch {
	case n.Value == "" && kind == grant.Env && r.pattern:
		return grant.Any, nil
	case n.Value == "" && kind == grant.Env, n.Value == grant.Any && r.pattern:
		return n.Value, nil
	case n.Value == "" || n.Value == grant.Any || strings.ContainsAny(n.Value, "=\x00") || len(n.Value) > 255:
		return "", grant.Errorf(place(n), "!%s: %q is no name", kind, short(n.Value))
	}
	return n.Value, nil
}

// Mount reads `NAME`, or `{path: NAME, rights: RIGHT}` or `{path: NAME, rights: [RIGHT, …]}`.
func (r *reader) mount(p *grant.Pattern, n *yaml.Node) error {
	p.Rights, p.AtMost = grant.Read|grant.Write, true
	at := n
	if n.Kind == yaml.MappingNode {
		fields, err := r.fields(n, "path", "rights")
		if err != nil {
			return err
		}
		if at = fields["path"]; at == nil {
			return grant.Errorf(place(n), "!mount: path is missing")
		}
		if rights := fields["rights"]; rights != nil {
			p.AtMost = false
			if p.Rights, err = r.rights(rights); err != nil {
				return err
			}
		}
	}
	if at.Kind != yaml.ScalarNode {
		return grant.Errorf(place(at), "!mount takes the path of a mount in the container, or {path, rights}")
	}
	if p.Name = at.Value; r.pattern && p.Name == grant.Any {
		return nil
	}
	if err := grant.CheckMountName(p.Name); err != nil {
		return grant.Errorf(place(at), "%v", err)
	}
	return nil
}

func (r *reader) rights(n *yaml.Node) (grant.Rights, error) {
	names := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		names = n.Content
	}
	var all grant.Rights
	for _, name := range names {
		name = deref(name)
		right, ok := grant.ParseRight(name.Value)
		if !ok || name.Kind != yaml.ScalarNode {
			return 0, grant.Errorf(place(name), "unknown right %q; there are read, write, execute", short(name.Value))
		}
		if all&right != 0 {
			return 0, grant.Errorf(place(name), "right %s is there twice", right)
		}
		all |= right
	}
	if all == 0 {
		return 0, grant.Errorf(place(n), "a mount without rights: leave it out")
	}
	return all, nil
}

// Listen reads `{tcp: PORT}` or `{udp: PORT}`; in a policy PORT may be `FROM-TO`.
func (r *reader) listen(p *grant.Pattern, n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return grant.Errorf(place(n), "!listen takes {tcp: PORT} or {udp: PORT}")
	}
	fields, err := r.fields(n, grant.TCP, grant.UDP)
	if err != nil {
		return err
	}
	if len(fields) != 1 {
		return grant.Errorf(place(n), "!listen takes {tcp: PORT} or {udp: PORT}, one of them")
	}
	var at *yaml.Node
	for p.Protocol, at = range fields {
	}
	from, to := at.Value, at.Value
	if low, high, ok := strings.Cut(at.Value, "-"); ok && r.pattern {
		from, to = low, high
	}
	low, err := strconv.ParseUint(from, 10, 16)
	high, errHigh := strconv.ParseUint(to, 10, 16)
	if at.Kind != yaml.ScalarNode || err != nil || errHigh != nil || low == 0 || low > high {
		return grant.Errorf(place(at), "%q is no port: 1 to 65535", short(at.Value))
	}
	if p.Ports = (grant.Ports{From: uint16(low), To: uint16(high)}); !r.pattern {
		p.Port = uint16(low)
	}
	return nil
}

// Labels reads a mapping of strings to strings. A number must be quoted: Scuba's rule, and one that a typing error cannot break.
func (r *reader) labels(n *yaml.Node) (map[string]string, error) {
	labels := map[string]string{}
	if n.Kind == yaml.ScalarNode && nullText.MatchString(n.Value) {
		return labels, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, grant.Errorf(place(n), "!server and !client take a mapping of labels")
	}
	seen := map[string]grant.Pos{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := deref(n.Content[i]), deref(n.Content[i+1])
		if !isString(key) || !isString(value) {
			at := key
			if isString(key) {
				at = value
			}
			return nil, grant.Errorf(place(at), "Switchboard label keys and values must be strings")
		}
		name, err := r.key(key, seen)
		if err != nil {
			return nil, err
		}
		if r.left--; r.left < 0 || len(labels) == grant.MaxLabels {
			return nil, grant.Errorf(place(key), "more than %d labels", grant.MaxLabels)
		}
		if name == "" || len(name) > grant.MaxLabel || len(value.Value) > grant.MaxLabel || strings.ContainsRune(name+value.Value, 0) {
			return nil, grant.Errorf(place(key), "a label has a key and a value of at most %d bytes each", grant.MaxLabel)
		}
		labels[name] = value.Value
	}
	return labels, nil
}

// Deref returns the target of n, if n is an alias, else n.
func deref(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// IsString reports whether n resolves to a string.
func isString(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode {
		return false
	}
	if n.Style&yaml.TaggedStyle != 0 && n.ShortTag() != "!!str" {
		return false
	}
	v, err := scalar(n)
	return err == nil && v.Form == grant.String
}

// Fields returns the values of a mapping that may have only the keys given, each once.
func (r *reader) fields(n *yaml.Node, allowed ...string) (map[string]*yaml.Node, error) {
	out := map[string]*yaml.Node{}
	seen := map[string]grant.Pos{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, err := r.key(n.Content[i], seen)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(allowed, name) {
			return nil, grant.Errorf(place(n.Content[i]), "unknown key %q; there are %s", short(name), strings.Join(allowed, ", "))
		}
		out[name] = deref(n.Content[i+1])
	}
	return out, nil
}
