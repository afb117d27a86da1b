package translate

import (
	"github.com/longshore/longshore/internal/core"
)

// Images are those of a task, as they were found.
type Images struct {
	Root   core.Image   // zero for a Rootfs
	Mounts []core.Image // of the mounts of images, in the job's order
}

// imageMounts are the images that the task wants shown.
func (a Task) imageMounts(found []core.Image) (list []core.ImageMount) {
	for _, m := range a.Conf.Mounts {
		if m.Type == "image" && len(list) < len(found) {
			list = append(list, core.ImageMount{Image: found[len(list)].ID, SubPath: m.SubPath})
		}
	}
	return list
}
