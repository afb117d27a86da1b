package auth

import (
	"strings"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
)

// The claims that are used: an executor has the id of its container, a resource
// provider the prefix of its containers' ids.
const (
	claimContainer = "cid"
	claimPrefix    = "cid_prefix"
)

// allowsByClaims reports whether a principal without a name may do something. The rules of the file
// are about names only. An executor may manage containers nested in its own, a resource provider
// its own standalone containers, and nothing else is allowed.
func (p Principal) allowsByClaims(a action, id *mesosv1.ContainerID) bool {
	switch a { //nolint:exhaustive // all others are refused
	case launchNestedAs, launchNestedUnder, waitNested, killNested, removeNested, launchSessionsAs, launchSessionsUnder, attachOutput:
		root := id
		for root.GetParent() != nil {
			root = root.GetParent()
		}
		own, ok := p.Claims[claimContainer]
		return ok && root != nil && own == root.GetValue()
	case launchStandalone, waitStandalone, killStandalone, removeStandalone, viewStandalone:
		prefix, ok := p.Claims[claimPrefix]
		return ok && id != nil && strings.HasPrefix(id.GetValue(), prefix)
	default:
		return false
	}
}
