package translate

import (
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/taskconf"
)

// Images are those of a task, as they were found.
type Images struct {
	Root   core.Image   // zero for a Rootfs
	Mounts []core.Image // of the mounts of images, in the job's order
}

// imageSource stands in a mount for the path of the image of that number until the
// engine has told it. It is no path, so nothing else looks like it.
const imageSource = "image "

// imageMounts are the images that the task wants shown.
func (a Task) imageMounts(found []core.Image) (list []core.ImageMount) {
	for _, m := range a.Conf.Mounts {
		if m.Type == "image" && len(list) < len(found) {
			list = append(list, core.ImageMount{Image: found[len(list)].ID, SubPath: m.SubPath})
		}
	}
	return list
}

func imageMount(m taskconf.Mount, number int) specs.Mount {
	return specs.Mount{
		Destination: m.Target, Type: "bind", Source: imageSource + strconv.Itoa(number), Options: []string{"rbind", "rprivate", "ro", "nosuid", "nodev"},
	}
}

// placeImages fills the sources in.
func placeImages(s *specs.Spec, paths []string) {
	for i := range s.Mounts {
		rest, ok := strings.CutPrefix(s.Mounts[i].Source, imageSource)
		if n, err := strconv.Atoi(rest); ok && err == nil && n < len(paths) {
			s.Mounts[i].Source = paths[n]
		}
	}
}
