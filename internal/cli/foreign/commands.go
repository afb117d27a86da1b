package foreign

import "strings"

// Reason says why Longshore lacks a command or a flag.
type Reason struct {
	// Text is the reason, with the replacement.
	Text string
	// Nothing reports that the command or flag has no meaning on a Linux node without Docker's engine.
	Nothing bool
}

// Command returns the reason for a missing command. path has the command's words without the program's name. A reason for
// the first word is also one for all commands below it.
func Command(path string) (Reason, bool) {
	for ; path != ""; path = path[:max(strings.LastIndexByte(path, ' '), 0)] {
		for _, list := range []struct {
			commands map[string]string
			nothing  bool
		}{{otherCommands(), false}, {emptyCommands(), true}} {
			if text, ok := list.commands[path]; ok {
				return Reason{text, list.nothing}, true
			}
		}
	}
	return Reason{}, false
}

// otherCommands maps commands to their replacements.
func otherCommands() map[string]string {
	const (
		build = "Longshore builds no images: use buildah, BuildKit or podman build, and import or pull the result"
		hub   = " to a Swarm's managers, or to Longshore's hub: use longshore-hub, or docker on a manager"
	)
	return map[string]string{
		"search":            "there is no search: use the web site of the registry",
		"build":             build,
		"image build":       build,
		"builder":           build,
		"buildx":            build,
		"compose":           "use longshore up and longshore down on a node, and longshore-hub apply on the hub",
		"config create":     "configs belong" + hub,
		"config inspect":    "configs belong" + hub,
		"config ls":         "configs belong" + hub,
		"config list":       "configs belong" + hub,
		"config rm":         "configs belong" + hub,
		"config remove":     "configs belong" + hub,
		"checkpoint create": "a container has one checkpoint, without a name: use longshore checkpoint CONTAINER",
		"checkpoint list":   "a container has one checkpoint: use longshore inspect CONTAINER",
		"checkpoint ls":     "a container has one checkpoint: use longshore inspect CONTAINER",
		"checkpoint remove": "a checkpoint is removed with its container: use longshore rm CONTAINER",
		"checkpoint rm":     "a checkpoint is removed with its container: use longshore rm CONTAINER",
		"context":           "there are no contexts: use --socket or --guest to name another agent",
		"manifest":          "manifests are made where images are built: use buildah manifest or skopeo",
		"node":              "nodes belong" + hub,
		"pod":               "there are no pods by this name: see longshore sandboxes",
		"secret":            "secrets belong" + hub,
		"service":           "services belong" + hub,
		"stack":             "stacks belong" + hub,
		"swarm ca":          "the Swarm's root certificate belongs" + hub,
		"swarm init":        "this node can only be a worker: use docker swarm init on another node, and longshore swarm join here",
		"swarm join-token":  "join tokens belong" + hub,
		"swarm unlock":      "only a Swarm's managers are locked: use docker swarm unlock on a manager",
		"swarm unlock-key":  "only a Swarm's managers are locked: use docker swarm unlock-key on a manager",
		"swarm update":      "the Swarm's settings belong" + hub,
		"trust":             "images.policy decides which images may run: use cosign, and see docs/guide/image-policy.md",
		"volume update":     "cluster volumes belong" + hub,
	}
}

// emptyCommands maps commands that have no meaning here to the reason.
func emptyCommands() map[string]string {
	return map[string]string{
		"machine": "there is no machine to manage: the agent runs on this one",
		"plugin":  "Docker's engine plugins do not work here: volumes and networks have no plugins of this kind",
	}
}
