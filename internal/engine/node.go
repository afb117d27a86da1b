package engine

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/lease"
)

// PullImage fetches an image, unless it is there and opts.Always is not set.
func (n *Node) PullImage(ctx context.Context, ref string, opts core.PullOptions) (core.Image, error) {
	owner, err := n.owns("pull image")
	if err != nil {
		return core.Image{}, err
	}
	l := n.e.line("pull")
	if err := l.pass("begin"); err != nil {
		return core.Image{}, err
	}
	img, err := n.e.o.Images.Pull(ctx, owner, ref, opts)
	if err != nil {
		return core.Image{}, err
	}
	if err := l.pass("pulled"); err != nil {
		return core.Image{}, err
	}
	if err := n.e.tell(core.Event{Kind: core.EventImagePulled, Owner: owner, Key: core.Key(ref), Note: string(img.ID)}); err != nil {
		return core.Image{}, err
	}
	return img, l.pass("recorded")
}

// Image finds one image: see core.Images.Get for what ref may be.
func (n *Node) Image(ctx context.Context, ref string) (core.Image, error) {
	return n.e.o.Images.Get(ctx, n.owner, ref)
}

// Images lists the owner's images; the unscoped view's are all.
func (n *Node) Images(ctx context.Context) ([]core.Image, error) {
	return n.e.o.Images.List(ctx, n.owner)
}

// TagImage gives an image a further name.
func (n *Node) TagImage(ctx context.Context, source, target string) error {
	owner, err := n.owns("tag image")
	if err != nil {
		return err
	}
	return n.e.o.Images.Tag(ctx, owner, source, target)
}

// RemoveImage drops a name, or by ID every name of this owner; success when
// there is none.
func (n *Node) RemoveImage(ctx context.Context, ref string) error {
	owner, err := n.owns("remove image")
	if err != nil {
		return err
	}
	if err := n.e.o.Images.Remove(ctx, owner, ref); err != nil {
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	return n.e.tell(core.Event{Kind: core.EventImageRemoved, Owner: owner, Key: core.Key(ref)})
}

// ImportImages reads an OCI or docker archive.
func (n *Node) ImportImages(ctx context.Context, archive io.Reader) ([]core.Image, error) {
	owner, err := n.owns("import images")
	if err != nil {
		return nil, err
	}
	imgs, err := n.e.o.Images.Import(ctx, owner, archive)
	if err != nil {
		return nil, err
	}
	for _, img := range imgs {
		ev := core.Event{Kind: core.EventImagePulled, Owner: owner, Key: core.Key(img.ID), Note: string(img.ID)}
		if len(img.Names) > 0 {
			ev.Key = core.Key(img.Names[0])
		}
		if err := n.e.tell(ev); err != nil {
			return nil, err
		}
	}
	return imgs, nil
}

// ExportImages writes an OCI archive.
func (n *Node) ExportImages(ctx context.Context, refs []string, w io.Writer) error {
	return n.e.o.Images.Export(ctx, n.owner, refs, w)
}

// PruneImages removes the owner's images for which keep answers false, then
// collects garbage. Images of containers, and those held by a lease, are always
// kept.
func (n *Node) PruneImages(ctx context.Context, keep func(core.Image) bool) (uint64, error) {
	owner, err := n.owns("prune images")
	if err != nil {
		return 0, err
	}
	return n.e.leases.Prune(owner, func(holds func(digest.Digest) bool) (uint64, error) {
		return n.prune(ctx, owner, func(img core.Image) bool { return holds(img.ID) || keep != nil && keep(img) })
	})
}

// LeaseImages returns a lease: what is found by it is not pruned before it is
// released. Who makes containers of images keeps one from before it looks for
// them until the containers are there. The caller releases it.
func (n *Node) LeaseImages() *lease.Lease {
	return n.e.leases.Open(n.owner, lease.Ports{Image: n.Image, Pull: n.PullImage})
}

// ImagesLeased reports whether the owner has leases that are not released.
func (n *Node) ImagesLeased() bool { return n.e.leases.Leased(n.owner) }

// prune is PruneImages while no lease gets a further image.
func (n *Node) prune(ctx context.Context, owner core.Owner, keep func(core.Image) bool) (uint64, error) {
	used := map[string]bool{}
	err := n.e.o.Store.View(func(tx core.Tx) error {
		for c, err := range tx.Containers().All(owner) {
			if err != nil {
				return err
			}
			used[string(c.Image)] = true
			for _, m := range c.Config.Images {
				used[string(m.Image)] = true
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n.e.o.Images.Prune(ctx, owner, func(img core.Image) bool { return used[string(img.ID)] || keep(img) })
}

// ImageUsage is what the image store occupies.
func (n *Node) ImageUsage(ctx context.Context) (core.ImageUsage, error) {
	return n.e.o.Images.Usage(ctx)
}

// CreateVolume makes a volume; AlreadyExists when there is one of the name.
func (n *Node) CreateVolume(ctx context.Context, name string, labels map[string]string) (core.Volume, error) {
	owner, err := n.owns("create volume")
	if err != nil {
		return core.Volume{}, err
	}
	return n.e.o.Volumes.Create(ctx, owner, name, labels)
}

// Volumes lists the owner's volumes.
func (n *Node) Volumes(ctx context.Context) ([]core.Volume, error) {
	return n.e.o.Volumes.List(ctx, n.owner)
}

// RemoveVolume removes a volume that no container uses; success when it is gone.
func (n *Node) RemoveVolume(ctx context.Context, name string) error {
	owner, err := n.owns("remove volume")
	if err != nil {
		return err
	}
	used, err := n.e.volumesInUse(owner)
	if err != nil {
		return err
	}
	if used[name] {
		return fmt.Errorf("remove volume %s: a container uses it: %w", name, errdefs.ErrFailedPrecondition)
	}
	if err := n.e.o.Volumes.Remove(ctx, owner, name); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// PruneVolumes removes the volumes that no container uses and returns them.
func (n *Node) PruneVolumes(ctx context.Context) ([]core.Volume, error) {
	owner, err := n.owns("prune volumes")
	if err != nil {
		return nil, err
	}
	all, err := n.e.o.Volumes.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	used, err := n.e.volumesInUse(owner)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(v core.Volume) bool { return used[v.Name] })
	for i, v := range all {
		if err := n.e.o.Volumes.Remove(ctx, owner, v.Name); err != nil && !errdefs.IsNotFound(err) {
			return all[:i], err
		}
	}
	return all, nil
}

func (b book) volumesInUse(owner core.Owner) (map[string]bool, error) {
	used := map[string]bool{}
	err := b.store.View(func(tx core.Tx) error {
		for c, err := range tx.Containers().All(owner) {
			if err != nil {
				return err
			}
			for _, v := range c.Config.Volumes {
				used[v.Name] = true
			}
		}
		return nil
	})
	return used, err
}

// NetworkInfo is the state of the node's network as a whole.
func (n *Node) NetworkInfo(ctx context.Context) (core.NetworkInfo, error) {
	return n.e.o.Network.Info(ctx)
}

// SetNetworkRanges changes where later sandboxes get addresses from.
func (n *Node) SetNetworkRanges(ctx context.Context, cidrs []string) error {
	return n.e.o.Network.SetRanges(ctx, cidrs)
}

// Runtimes tells of every configured runtime.
func (n *Node) Runtimes(ctx context.Context) ([]RuntimeInfo, error) {
	var list []RuntimeInfo
	for _, rt := range n.e.o.Runtimes {
		info := RuntimeInfo{Name: rt.Name(), Default: rt.Name() == n.e.o.Default}
		f, err := n.e.featuresOf(ctx, rt)
		if err != nil {
			info.Problem = err.Error()
		}
		info.Features = f
		list = append(list, info)
	}
	return list, nil
}

// RuntimeInfo is one configured runtime.
type RuntimeInfo struct {
	Name     string
	Default  bool
	Features core.RuntimeFeatures
	Problem  string // why it cannot be used; "" when it can
}
