package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// Info describes the node and the number of its objects.
func (s *nodeServer) Info(ctx context.Context, _ *longshorev1.InfoRequest) (*longshorev1.InfoResponse, error) {
	version, err := s.Version(ctx, nil)
	if err != nil {
		return nil, err
	}
	resp := &longshorev1.InfoResponse{Version: version, Cpus: int32(runtime.NumCPU()), System: system("/etc/os-release")}
	resp.Hostname, _ = os.Hostname()
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		resp.MemoryBytes = info.Totalram * uint64(info.Unit)
	}
	containers, err := s.srv.all.Stored.Containers()
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		switch c.State {
		case core.ContainerRunning:
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

// system returns the name of the operating system from the file os-release, "" without one.
func system(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "PRETTY_NAME="); ok {
			if plain, err := strconv.Unquote(name); err == nil {
				return plain
			}
			return strings.Trim(name, `'"`)
		}
	}
	return ""
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
		for _, v := range c.Config.Volumes {
			usedVolume[[2]string{string(c.Owner), v.Name}] = true
		}
		u := &longshorev1.Usage{
			Owner: string(c.Owner), Id: string(c.ID), Name: string(c.Key), Active: c.State == core.ContainerRunning || c.State == core.ContainerPaused,
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
				if u.Bytes, err = treeBytes(ctx, v.Path); err != nil {
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

// treeBytes returns the disk usage of a directory's files, each counted once. It follows no link
// and goes into no other filesystem.
func treeBytes(ctx context.Context, dir string) (uint64, error) {
	type file struct{ dev, ino uint64 }
	seen := map[file]bool{}
	root, err := os.OpenRoot(dir) // a container owns the content, and may replace directories by links
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	var bytes, device uint64
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			return nil // it was removed meanwhile
		case err != nil:
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if path == "." {
			device = st.Dev
		}
		if st.Dev != device {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		f := file{st.Dev, st.Ino}
		if st.Nlink > 1 && !d.IsDir() {
			if seen[f] {
				return nil
			}
			seen[f] = true
		}
		bytes += uint64(st.Blocks) * 512
		return nil
	})
	return bytes, err
}
