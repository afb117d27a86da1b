package auth

import (
	"strings"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
)

// The claims that are looked at: an executor has its container's id, a resource
// provider what its containers' ids begin with.
const (
	claimContainer = "cid"
	claimPrefix    = "cid_prefix"
)

// claims reports whether somebody without a name may do something. The file's rules
// are for names: an executor may do what it does with what is nested in its own
// container, a resource provider what it does with its own standalone ones, and no
// one else anything that is asked for.
func (p Principal) allowsByClaims(a action, id *mesosv1.ContainerID) bool {
	switch a { //nolint:exhaustive // all others may not
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
