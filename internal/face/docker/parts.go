package docker

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/face/docker/images"
	"github.com/longshore/longshore/internal/face/docker/networks"
	"github.com/longshore/longshore/internal/face/docker/stats"
	"github.com/longshore/longshore/internal/face/docker/system"
	"github.com/longshore/longshore/internal/face/docker/volumes"
	"github.com/longshore/longshore/internal/hostinfo"
)

// Namespaces makes namespaces of a user namespace's mappings.
type Namespaces func(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error)

// storageDriver is the name of the storage driver in documents. Programs know it from dockerd.
const storageDriver = "overlay2"

// parts are the servers of the operations that are not about containers.
type parts struct {
	networks *networks.Server
	all      []interface{ Routes(m *dockerhttp.Mux) }
}

func (f *Face) makeParts() {
	f.parts.networks = &networks.Server{
		Began:    time.Now().UTC(),
		Networks: f.o.Networks, Engine: f.own, Others: f.o.Others, Container: f.find, Mode: modeOf, Names: f.o.Node.Publish, Publish: f.events.Publish,
		Default: networks.Default{Interface: f.o.Bridge, Masquerade: true},
	}
	vols := &volumes.Server{Engine: f.own, Size: hostinfo.TreeBytes, Publish: f.events.Publish}
	imgs := &images.Server{
		Engine: f.own, Transfers: f.o.Transfers, Owner: core.OwnerDocker, Publish: f.events.Publish, DefaultRegistry: f.o.Registry, Driver: storageDriver,
		HidesEnv: hidesEnv,
	}
	f.parts.all = []interface{ Routes(m *dockerhttp.Mux) }{
		f.events, f.parts.networks, vols,
		imgs,
		&stats.Server{Engine: others{f}.reads(), Container: f.findAny, Publish: f.events.Publish, HidesEnv: hidesEnv},
		&system.Server{
			Engine: f.own, Build: system.Build{Version: EngineVersion, Agent: f.o.Version, Commit: hostinfo.Revision()}, Versions: versions(),
			CgroupDriver: f.o.CgroupDriver, CDIDirs: f.o.CDIDirs, Swarm: f.o.Swarm, Readers: f.events.Readers, Images: imgs.Documents, Volumes: vols.Documents,
			Containers: func(ctx context.Context, api dockerhttp.Version) (any, error) { return f.summaries(ctx, api, true) },
		},
	}
}

func versions() dockerhttp.Range {
	return dockerhttp.Range{Min: dockerhttp.MustParse(MinVersion), Max: dockerhttp.MustParse(MaxVersion)}
}

// modeOf returns the network mode of a container's create request.
func modeOf(c core.Container) string {
	if r, err := asked(c); err == nil {
		return r.HostConfig.NetworkMode
	}
	return ""
}

// networkID returns the id of a network by its name, "" if it does not exist.
func (f *Face) networkID(name string) string {
	n, err := f.parts.networks.Find(context.Background(), name)
	if err != nil {
		return ""
	}
	return n.ID
}

// networkName returns the name of a network by its name or id.
func (f *Face) networkName(ref string) (string, error) {
	n, err := f.parts.networks.Find(context.Background(), ref)
	return n.Name, err
}

// volumePath returns the directory of a volume's files.
func (f *Face) volumePath(name string) string {
	list, err := f.own.Volumes.List(context.Background())
	if err != nil {
		return ""
	}
	for _, v := range list {
		if v.Name == name {
			return v.Path
		}
	}
	return ""
}

// sizes returns the bytes of a container's own files, and those with its image's.
func (f *Face) sizes(ctx context.Context, c core.Container) (own, all int64, err error) {
	st, err := f.own.Stats.Images.RootStats(ctx, c.ID)
	if err != nil && !errdefs.IsNotFound(err) {
		return 0, 0, err
	}
	if st.Bytes.OK {
		own = int64(min(st.Bytes.N, 1<<62))
	}
	list, err := f.own.Images.List(ctx)
	for _, img := range list {
		if img.ID == c.Image {
			return own, own + cmp.Or(img.Unpacked, img.Size), err
		}
	}
	return own, own, err
}

// withTag returns an image's name as clients know it, with its tag.
func withTag(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.FamiliarString(reference.TagNameOnly(named))
}
