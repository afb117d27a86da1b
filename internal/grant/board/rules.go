package board

import (
	"slices"

	"github.com/longshore/longshore/internal/grant"
)

// Rule opens servers to clients of another realm. Its texts are patterns, with * for any text; "" matches everybody.
type Rule struct {
	Client Realm `json:"client"`
	Server Realm `json:"server"`
}

// Rules open the servers that any of them opens.
type Rules []Rule

// Agent is the owner of the agent's own servers. They are open only by rules with this name: no pattern matches it.
const Agent = "longshore"

// OpensAgent reports whether a rule opens the agent to somebody.
func (r Rules) OpensAgent() bool {
	return slices.ContainsFunc(r, func(rule Rule) bool { return rule.Server.Owner == Agent })
}

// Open says whether clients of one realm may reach servers of another one.
func (r Rules) Open(client, server Realm) bool {
	for _, rule := range r {
		if server.Owner == Agent && rule.Server.Owner != Agent {
			continue
		}
		if rule.Client.matches(client) && rule.Server.matches(server) {
			return true
		}
	}
	return false
}

func (r Realm) matches(other Realm) bool {
	return grant.Matches(r.Owner, other.Owner) && grant.Matches(r.Namespace, other.Namespace)
}
