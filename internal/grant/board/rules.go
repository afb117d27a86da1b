package board

import "github.com/longshore/longshore/internal/grant"

// Rule opens servers to clients of another realm. Its texts are patterns, in which * stands for any text; "" matches everybody.
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
	return grant.Matches(r.Owner, other.Owner) && grant.Matches(r.Namespace, other.Namespace)
}
