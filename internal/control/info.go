package control

import (
	"context"
	"fmt"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/hostinfo"
)

// Info describes the node and the number of its objects.
func (s *nodeServer) Info(ctx context.Context, _ *longshorev1.InfoRequest) (*longshorev1.InfoResponse, error) {
	version, err := s.Version(ctx, nil)
	if err != nil {
		return nil, err
	}
	host := hostinfo.Read()
	resp := &longshorev1.InfoResponse{
		Version: version, Cpus: int32(host.CPUs), System: host.System, Hostname: host.Name, MemoryBytes: host.Memory,
	}
	containers, err := s.srv.all.Stored.Containers()
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		switch c.State {
		case core.ContainerRunning, core.ContainerAsleep:
			resp.Running++
		case core.ContainerPaused:
			resp.Paused++
		case core.ContainerCreating, core.ContainerCreated, core.ContainerExited:
			resp.Stopped++
		}
	}
	images, err := s.srv.all.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, img := range images {
		ids[img.ID.String()] = true
	}
	resp.Images = uint32(len(ids))
	for _, o := range owners() {
		list, err := s.srv.o.Engine.As(o).Volumes.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list volumes of %s: %w", o, err)
		}
		resp.Volumes += uint32(len(list))
	}
	if u, err := s.srv.all.Images.Usage(ctx); err == nil {
		resp.Storage = u.Path
	}
	resp.Cgroups = string(s.srv.all.Stats.Cgroups.Mode())
	if n, err := s.srv.all.Network.Info(ctx); err == nil {
		resp.Network = n.Mode
		for _, r := range n.Ranges {
			resp.NetworkRanges = append(resp.NetworkRanges, r.String())
		}
	}
	return resp, nil
}

// DiskUsage returns the disk usage of each image, container and volume.
func (s *nodeServer) DiskUsage(ctx context.Context, _ *longshorev1.DiskUsageRequest) (*longshorev1.DiskUsageResponse, error) {
	containers, err := s.srv.all.Stored.Containers()
	if err != nil {
		return nil, err
	}
	resp := &longshorev1.DiskUsageResponse{}
	usedImage, usedVolume := map[string]bool{}, map[[2]string]bool{}
	for _, c := range containers {
		usedImage[c.Image.String()] = true
		for _, m := range c.Config.Images {
			usedImage[m.Image.String()] = true
		}
		for _, v := range c.Config.Volumes {
			usedVolume[[2]string{string(c.Owner), v.Name}] = true
		}
		u := &longshorev1.Usage{
			Owner: string(c.Owner), Id: string(c.ID), Name: string(c.Key), Active: c.State.Live(),
		}
		if st, err := s.srv.all.Stats.Images.RootStats(ctx, c.ID); err == nil {
			u.Bytes = st.Bytes.N
		}
		resp.Containers = append(resp.Containers, u)
	}
	seen := map[string]bool{}
	for _, o := range owners() {
		view := s.srv.o.Engine.As(o)
		images, err := view.Images.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list images of %s: %w", o, err)
		}
		for _, img := range images {
			id := img.ID.String()
			if seen[id] { // several owners may have names for one image
				continue
			}
			seen[id] = true
			u := &longshorev1.Usage{Owner: string(o), Id: id, Bytes: uint64(max(img.Size, 0) + max(img.Unpacked, 0)), Active: usedImage[id]}
			if len(img.Names) > 0 {
				u.Name = img.Names[0]
			}
			resp.Images = append(resp.Images, u)
		}
		volumes, err := view.Volumes.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list volumes of %s: %w", o, err)
		}
		for _, v := range volumes {
			u := &longshorev1.Usage{Owner: string(o), Name: v.Name, Active: usedVolume[[2]string{string(o), v.Name}]}
			if len(v.Options) == 0 { // the content of volumes with options is not on this disk
				if u.Bytes, err = hostinfo.TreeBytes(ctx, v.Path); err != nil {
					return nil, fmt.Errorf("measure volume %s: %w", v.Name, err)
				}
			}
			resp.Volumes = append(resp.Volumes, u)
		}
	}
	usage, err := s.srv.all.Images.Usage(ctx)
	if err != nil {
		return nil, err
	}
	resp.StoreBytes = usage.Bytes
	return resp, nil
}
