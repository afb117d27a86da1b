package board

import (
	"slices"

	"github.com/longshore/longshore/internal/grant"
)

// Rule opens servers to clients of another realm. Its texts are patterns, in which * stands for any text; "" matches everybody.
type Rule struct {
	Client Realm `json:"client"`
	Server Realm `json:"server"`
}

// Rules open what any of them opens.
type Rules []Rule

// Agent is the owner of the agent's own servers. They are open to those only whom a rule names it for: no pattern means it.
const Agent = "longshore"

// OpensAgent says whether there is somebody to whom the agent is open.
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
