package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/doctor"
)

// usersFinding lists the containers with the node's ids although engine.userns is auto, and why.
func (n *node) usersFinding(ctx context.Context) control.Finding {
	const name = "user namespaces"
	auto, err := n.users.Auto()
	switch {
	case !auto:
		return ok(name, "for those that ask for one; engine.userns = \"auto\" is for all")
	case err != nil:
		return warn(name, "use a kernel and a file system with id-mapped mounts for agent.root, or engine.userns = \"off\"", "engine.userns = \"auto\" has no effect: %v", err)
	}
	first := uint64(n.cfg.Engine.UsersFirstID)
	count := uint64(n.cfg.Engine.UsersRanges) * uint64(core.UserIDs)
	if f := sharedIDs(name, "/etc", first, count); f != nil {
		return *f
	}
	all := n.engine.All()
	sandboxes, err := all.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return warn(name, "", "%v", err)
	}
	containers, err := all.Containers(ctx, core.Filter{})
	if err != nil {
		return warn(name, "", "%v", err)
	}
	return nodeIDs(name, sandboxes, containers)
}

// sharedIDs returns a finding if files in etc give ids of the node's ranges to users: their containers and ours would have the
// same ids.
func sharedIDs(name, etc string, first, count uint64) *control.Finding {
	list, err := doctor.SubIDs(etc, first, count)
	if err != nil {
		f := warn(name, "", "%v", err)
		return &f
	}
	if len(list) == 0 {
		return nil
	}
	f := warn(name, "choose other ids by engine.userns_first_id and engine.userns_ranges, or change these entries",
		"the ids %d to %d are the node's for user namespaces, and also those of %s: containers of both can have the same ids", first, first+count-1, strings.Join(list, ", "))
	return &f
}

func nodeIDs(name string, sandboxes []core.Sandbox, containers []core.Container) control.Finding {
	of := map[core.ID]core.Sandbox{}
	for _, sb := range sandboxes {
		of[sb.ID] = sb
	}
	var list []string
	for _, c := range containers {
		if why := of[c.Sandbox].NodeIDs(&c.Config); why != "" {
			list = append(list, fmt.Sprintf("%s of %s: %s", c.Name(), c.Owner, why))
		}
	}
	if len(list) == 0 {
		return ok(name, "%d of %d containers are in one with ids of their own", len(containers), len(containers))
	}
	slices.Sort(list)
	return ok(name, "%d of %d containers have the node's ids: %s", len(list), len(containers), strings.Join(list, "; "))
}
