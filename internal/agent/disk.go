package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/disk"
	"github.com/longshore/longshore/internal/image"
)

// diskParts measures the agent's root directory, and finds deleted files that are open.
func diskParts(ctx context.Context, n *node) ([]*disk.Part, error) {
	if n.engine == nil {
		return nil, errors.New("the agent is recovering")
	}
	o, err := occupantsOf(ctx, n)
	if err != nil {
		return nil, err
	}
	root := n.cfg.Agent.Root
	all, err := disk.Measure(ctx, root, root, o.place)
	if err != nil {
		return nil, err
	}
	deleted, err := disk.Deleted(ctx, "/proc", root, o.containerOf)
	if err != nil {
		return nil, err
	}
	return []*disk.Part{all, deleted}, nil
}

// occupants are the objects that have files below the root directory.
type occupants struct {
	root       string
	store      image.Places
	sandboxes  map[string]core.Sandbox
	containers map[string]core.Container
	volumes    map[string]string      // names by path, relative to root
	usedVolume map[string]int         // containers, by such a path
	users      map[digest.Digest]int  // containers that run an image, by the image's ID
	live       map[digest.Digest]bool // of them, some have not ended, or are not the command line's
}

func occupantsOf(ctx context.Context, n *node) (*occupants, error) {
	o := &occupants{
		root: n.cfg.Agent.Root, store: image.PlacesOf(n.images), sandboxes: map[string]core.Sandbox{}, containers: map[string]core.Container{},
		volumes: map[string]string{}, usedVolume: map[string]int{}, users: map[digest.Digest]int{}, live: map[digest.Digest]bool{},
	}
	all := n.engine.All()
	sandboxes, err := all.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	for _, sb := range sandboxes {
		o.sandboxes[string(sb.ID)] = sb
	}
	containers, err := all.Containers(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	used := map[string]int{}
	for _, c := range containers {
		o.containers[string(c.ID)] = c
		ids := []digest.Digest{c.Image}
		for _, m := range c.Config.Images {
			ids = append(ids, m.Image)
		}
		for _, id := range ids {
			o.users[id]++
			if !removable(&c) {
				o.live[id] = true
			}
		}
		for _, v := range c.Config.Volumes {
			used[string(c.Owner)+"/"+v.Name]++
		}
	}
	for _, owner := range []core.Owner{core.OwnerCLI, core.OwnerDocker, core.OwnerCRI, core.OwnerSwarm, core.OwnerNomad, core.OwnerMesos} {
		volumes, err := n.engine.As(owner).Volumes.List(ctx)
		if err != nil {
			return nil, err
		}
		for _, v := range volumes {
			if rel, err := filepath.Rel(o.root, filepath.Dir(v.Path)); err == nil && filepath.IsLocal(rel) {
				o.volumes[rel] = v.Name + " (" + string(owner) + ")"
				o.usedVolume[rel] = used[string(owner)+"/"+v.Name]
			}
		}
	}
	return o, nil
}

// containerOf returns the name of a process's container, by the names of its cgroups; "" if it is in none.
func (o *occupants) containerOf(pid string) string {
	b, _ := os.ReadFile("/proc/" + pid + "/cgroup")
	for _, part := range strings.FieldsFunc(string(b), func(r rune) bool { return strings.ContainsRune("/-.\n", r) }) {
		if c, ok := o.containers[part]; ok {
			return string(c.Key) + " (" + string(c.Owner) + ")"
		}
	}
	return ""
}

// removable reports whether `longshore system prune` removes a container.
func removable(c *core.Container) bool {
	return c.Owner == core.OwnerCLI && c.State == core.ContainerExited && !c.Restarting()
}

// place says which object a path below the root directory belongs to.
func (o *occupants) place(path string) disk.Place {
	first, rest, _ := strings.Cut(path, "/")
	second, below, _ := strings.Cut(rest, "/")
	switch first {
	case "image":
		return o.ofStore(rest, second, below)
	case "logs":
		return o.ofContainers(second, "output")
	case "log-drivers":
		return o.ofContainers(second, "output for its log service")
	case "sleep":
		return o.ofContainers(second, "memory while it sleeps")
	case "checkpoints":
		return o.ofContainers(second, "checkpoints")
	case "volumes":
		for path, name := range o.volumes {
			if path == first+"/"+rest || strings.HasPrefix(first+"/"+rest, path+"/") {
				return disk.Place{Path: []string{"volumes", name}, Note: usedBy(o.usedVolume[path])}
			}
		}
		return disk.Place{Path: []string{"volumes"}}
	case ".":
		return disk.Place{}
	}
	return disk.Place{Path: []string{"the node's records", first}}
}

// ofContainers places a file with the ID of a container or a sandbox in its name.
func (o *occupants) ofContainers(file, what string) disk.Place {
	id, _, _ := strings.Cut(file, ".")
	if c, ok := o.containers[id]; ok {
		return o.ofContainer(&c, what)
	}
	if sb, ok := o.sandboxes[id]; ok {
		for _, c := range o.containers {
			if c.Sandbox == sb.ID {
				return o.ofContainer(&c, what)
			}
		}
		return disk.Place{Path: []string{"containers", string(sb.Key) + " (" + string(sb.Owner) + ")", what}}
	}
	return disk.Place{Path: []string{"containers", "of no container", what}}
}

func (o *occupants) ofContainer(c *core.Container, what string) disk.Place {
	return disk.Place{Path: []string{"containers", string(c.Key) + " (" + string(c.Owner) + ")", what}, Unused: removable(c)}
}

// ofStore places a path of the image store.
func (o *occupants) ofStore(rest, first, below string) disk.Place {
	if first == "checkouts" {
		id, _, _ := strings.Cut(below, "/")
		return o.ofContainers(id, "changed files")
	}
	images, ok := o.store.Paths[rest]
	for at := rest; !ok && strings.Contains(at, "/"); images, ok = o.store.Paths[at] {
		at = filepath.Dir(at)
	}
	switch {
	case len(images) == 1:
		name, unused := o.image(images[0])
		return disk.Place{Path: []string{"images", name}, Note: usedBy(o.users[o.store.Images[images[0]].ID]), Unused: unused}
	case len(images) > 1:
		unused := true
		var names []string
		for _, m := range images {
			name, free := o.image(m)
			unused = unused && free
			names = append(names, name)
		}
		slices.Sort(names)
		return disk.Place{Path: []string{"images", "shared by several", strings.Join(names, ", ")}, Unused: unused}
	case first == "trash":
		return disk.Place{Path: []string{"images", "being removed"}}
	case first == "content" || first == "l":
		return disk.Place{Path: []string{"images", "of unfinished pulls, ended containers and directories"}}
	case first == "":
		return disk.Place{Path: []string{"images"}}
	}
	return disk.Place{Path: []string{"images", "the store's records"}}
}

// image returns an image's names with their owners, and whether `longshore system prune --all` removes it.
func (o *occupants) image(manifest digest.Digest) (name string, unused bool) {
	img := o.store.Images[manifest]
	unused = !o.live[img.ID]
	var names []string
	for owner, list := range img.Names {
		for _, n := range list {
			names = append(names, n+" ("+string(owner)+")")
		}
		unused = unused && (owner == core.OwnerCLI || len(list) == 0)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "without a name: " + manifest.String(), unused
	}
	return strings.Join(names, ", "), unused
}

func usedBy(containers int) string {
	switch containers {
	case 0:
		return "no container uses it"
	case 1:
		return "1 container uses it"
	}
	return fmt.Sprintf("%d containers use it", containers)
}
