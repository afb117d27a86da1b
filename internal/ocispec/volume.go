package ocispec

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// ImageVolumes are the directories that a container's image declares as volumes, except those that
// another mount of s covers, each as a bind of the directory onto itself. Missing ones are made.
//
// A volume is a part of the container's own layer: it has the image's files and owners, and its
// size counts as the layer's. A root with a file in its place, or a link that leads out, has no
// such volume.
func ImageVolumes(s *specs.Spec, r core.Rootfs) (list []specs.Mount) {
	for _, v := range Volumes(r.Image) {
		if slices.ContainsFunc(append(slices.Clone(s.Mounts), list...), func(m specs.Mount) bool { return covers(m.Destination, v) }) {
			continue
		}
		if dir := ownDir(r, strings.TrimPrefix(v, "/")); dir != "" {
			list = append(list, specs.Mount{Destination: v, Type: "bind", Source: dir, Options: []string{"bind", "rprivate", "rw"}})
		}
	}
	return list
}

// covers reports whether a mount at dir hides p.
func covers(dir, p string) bool {
	dir = path.Clean("/" + dir)
	return p == dir || strings.HasPrefix(p, dir+"/")
}

// ownDir returns the path on the host of a directory of the root, without links, and makes a
// missing one; "" if it cannot be made.
func ownDir(r core.Rootfs, name string) string {
	f, err := r.FS.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.Join(r.FS.MkdirAll(name, 0o755), r.FS.Lchown(name, rootOf(r.Sandbox.Config.UIDs), rootOf(r.Sandbox.Config.GIDs)))
		if err == nil {
			f, err = r.FS.Open(name)
		}
	}
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.IsDir() {
		return ""
	}
	dir, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return ""
	}
	return dir
}

// rootOf is the host's ID of a user namespace's root, and -1 without one: chown then
// changes nothing.
func rootOf(maps []specs.LinuxIDMapping) int {
	for _, m := range maps {
		if m.ContainerID == 0 && m.Size > 0 {
			return int(m.HostID)
		}
	}
	return -1
}

// AddBeforeInner adds mounts, each before those at or below its destination.
func AddBeforeInner(s *specs.Spec, list []specs.Mount) {
	for _, m := range list {
		at := slices.IndexFunc(s.Mounts, func(o specs.Mount) bool { return covers(m.Destination, path.Clean("/"+o.Destination)) })
		if at < 0 {
			at = len(s.Mounts)
		}
		s.Mounts = slices.Insert(slices.Clone(s.Mounts), at, m)
	}
}
