package board

import "strings"

// Rule opens servers to clients of another realm. In its texts * stands for any text, and "" matches everybody.
type Rule struct {
	Client Realm `json:"client"`
	Server Realm `json:"server"`
}

// Rules open what any of them opens.
type Rules []Rule

// Open says whether clients of one realm may reach servers of another one.
func (r Rules) Open(client, server Realm) bool {
	for _, rule := range r {
		if rule.Client.matches(client) && rule.Server.matches(server) {
			return true
		}
	}
	return false
}

func (r Realm) matches(other Realm) bool {
	return like(r.Owner, other.Owner) && like(r.Namespace, other.Namespace)
}

// like reports whether s is as pattern says.
func like(pattern, s string) bool {
	if pattern == "" {
		return true
	}
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return s == pattern
	}
	rest, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, parts[last])
}
