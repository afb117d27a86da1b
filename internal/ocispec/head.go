package ocispec

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Head computes the values of a container's process that depend on request, image and root: user,
// command, directory and environment.
type Head struct {
	// User finds the process's user; image is the image's user.
	User func(root *os.Root, image string) (User, error)
	// Args is the command line.
	Args func(img *imagespec.ImageConfig) ([]string, error)
	// WorkDir is the directory asked for. Without one it is the image's, then
	// DefaultDir, then the root.
	WorkDir, DefaultDir string
	Hostname            string
	// Env are lists of variables; a later one overrides those before it, and all of
	// them the image's.
	Env [][]string
	// Program changes the process before it loses the rights that its user may not have; nil
	// changes nothing.
	Program func(p *specs.Process, root *os.Root, user User)
}

// Finish completes s once the root exists, and returns the process's user. The directories that the
// image declares as volumes are made, and are writable below a read-only root too; the images among
// the mounts get their paths.
func (h Head) Finish(s *specs.Spec, r core.Rootfs) (User, error) {
	img := r.Image
	if img == nil {
		img = &imagespec.ImageConfig{}
	}
	user, err := h.User(r.FS, img.User)
	if err != nil {
		return user, err
	}
	p := s.Process
	p.User = user.User
	if p.Args, err = h.Args(img); err != nil {
		return user, err
	}
	dir := h.WorkDir
	if dir == "" && img.WorkingDir == "" {
		dir = h.DefaultDir
	}
	if p.Cwd, err = WorkingDir(img, dir); err != nil {
		return user, err
	}
	p.Env = Env(slices.Concat([][]string{BaseEnv(user.Home, h.Hostname, p.Terminal), img.Env}, h.Env)...)
	if h.Program != nil {
		h.Program(p, r.FS, user)
	}
	ForUser(p)
	placeImages(s, r.Images)
	if volumes := ImageVolumes(s, r); r.ReadOnly {
		AddBeforeInner(s, volumes)
	}
	return user, nil
}

// UserNamed is a Head's User that looks asked up in the files of the root; "" is the image's user.
func UserNamed(asked string) func(root *os.Root, image string) (User, error) {
	return func(root *os.Root, image string) (User, error) {
		files, err := ReadUserFiles(root)
		if err != nil {
			return User{}, err
		}
		if asked == "" {
			return files.LookUp(image)
		}
		return files.LookUp(asked)
	}
}

// imageSource stands in a mount for the path of the image of that number until
// Finish replaces it. It is no path, so that no other source looks like it.
const imageSource = "image "

// ImageMount shows at target the image with that number in the list that the
// container's config gives to the engine. All containers share it.
func ImageMount(target string, number int) specs.Mount {
	return specs.Mount{
		Destination: target, Type: "bind", Source: imageSource + strconv.Itoa(number), Options: []string{"rbind", "rprivate", "ro", "nosuid", "nodev"},
	}
}

func placeImages(s *specs.Spec, paths []string) {
	for i := range s.Mounts {
		rest, ok := strings.CutPrefix(s.Mounts[i].Source, imageSource)
		if n, err := strconv.Atoi(rest); ok && err == nil && n >= 0 && n < len(paths) {
			s.Mounts[i].Source = paths[n]
		}
	}
}

// AddMounts adds a request's mounts, parents before children in any order of the request.
func AddMounts(s *specs.Spec, asked []specs.Mount) {
	sorted := slices.Clone(asked)
	slices.SortStableFunc(sorted, func(x, y specs.Mount) int {
		return strings.Count(x.Destination, "/") - strings.Count(y.Destination, "/")
	})
	for _, m := range sorted {
		s.Mounts = AddMount(s.Mounts, m)
	}
	s.Linux.RootfsPropagation = RootPropagation(s.Mounts)
}

// AllPrivileges makes s as privileged as this node allows, with all its devices.
func AllPrivileges(s *specs.Spec) error {
	node, err := ReadNode()
	if err != nil {
		return fmt.Errorf("privileged container: %w", err)
	}
	devices, err := AllDevices()
	if err != nil {
		return fmt.Errorf("privileged container: %w", err)
	}
	Privileged(s, node, devices)
	return nil
}
