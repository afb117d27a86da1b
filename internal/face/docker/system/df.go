package system

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/hostinfo"
	"github.com/longshore/longshore/internal/invalid"
)

// measurement selects the types of a measurement, and the version of the answer.
type measurement struct {
	containers, images, volumes, cache bool
	api                                dockerhttp.Version
}

// df measures the disk usage of the owner's objects. Clients that ask while a measurement is made share it, because it reads all
// files of all volumes.
func (s *Server) df(w http.ResponseWriter, r *dockerhttp.Request) error {
	m, err := measured(r)
	if err != nil {
		return err
	}
	f := s.usage.Join(r.Context(), m, func() *dockertypes.DiskUsage { return &dockertypes.DiskUsage{} }, func(ctx context.Context, u *dockertypes.DiskUsage) error {
		return s.measure(ctx, m, u)
	})
	defer f.Leave()
	if err := f.Wait(r.Context()); err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusOK, f.State)
}

// measured returns the types of a request, all if it names none.
func measured(r *dockerhttp.Request) (measurement, error) {
	m := measurement{api: r.API}
	types := r.Values()["type"]
	if len(types) == 0 || r.API.Before("1.42") {
		m.containers, m.images, m.volumes, m.cache = true, true, true, true
		return m, nil
	}
	for _, t := range types {
		switch t {
		case "container":
			m.containers = true
		case "image":
			m.images = true
		case "volume":
			m.volumes = true
		case "build-cache":
			m.cache = true
		default:
			return m, invalid.Plainf("unknown object type: %s", strings.ToValidUTF8(t, "?"))
		}
	}
	return m, nil
}

func (s *Server) measure(ctx context.Context, m measurement, u *dockertypes.DiskUsage) (err error) {
	if m.images {
		if u.LayersSize, err = s.layers(ctx); err != nil {
			return err
		}
		if u.Images, err = list(ctx, m.api, s.Images); err != nil {
			return err
		}
	}
	if m.containers {
		if u.Containers, err = list(ctx, m.api, s.Containers); err != nil {
			return err
		}
	}
	if m.volumes {
		if u.Volumes, err = s.volumes(ctx); err != nil {
			return err
		}
	}
	if m.cache {
		u.BuildCache = []struct{}{}
	}
	return nil
}

func list(ctx context.Context, api dockerhttp.Version, of func(context.Context, dockerhttp.Version) (any, error)) (any, error) {
	if of == nil {
		return []struct{}{}, nil
	}
	return of(ctx, api)
}

// layers returns the size of all unpacked layers. Images may share some.
func (s *Server) layers(ctx context.Context) (total int64, err error) {
	images, err := s.Engine.Images.List(ctx)
	if err != nil {
		return 0, fmt.Errorf("list images: %w", err)
	}
	seen := map[digest.Digest]bool{}
	for _, img := range images {
		chain := digest.Digest("") // a layer is unpacked onto those below it
		for i, id := range img.Config.RootFS.DiffIDs {
			chain = digest.FromString(chain.String() + " " + id.String())
			if i < len(img.Layers) && !seen[chain] {
				seen[chain] = true
				total += img.Layers[i]
			}
		}
	}
	return total, nil
}

// volumes returns the volumes with their sizes and the numbers of containers that use them. As in dockerd, those with options are
// left out: their content is on another disk.
func (s *Server) volumes(ctx context.Context) ([]*dockertypes.Volume, error) {
	volumes := []*dockertypes.Volume{}
	if s.Volumes == nil {
		return volumes, nil
	}
	found, err := s.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	containers, err := s.Engine.Stored.Containers()
	if err != nil {
		return nil, err
	}
	users := map[string]int64{}
	for _, c := range containers {
		names := map[string]bool{}
		for _, v := range c.Config.Volumes {
			names[v.Name] = true
		}
		for name := range names {
			users[name]++
		}
	}
	for _, v := range found {
		if len(v.Options) > 0 {
			continue
		}
		bytes, err := hostinfo.TreeBytes(ctx, v.Mountpoint)
		if err != nil {
			return nil, fmt.Errorf("measure volume %s: %w", v.Name, err)
		}
		one := *v
		one.UsageData = &dockertypes.UsageData{RefCount: users[v.Name], Size: int64(bytes)}
		volumes = append(volumes, &one)
	}
	return volumes, nil
}
