package translate

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// Images are the images of a launch.
type Images struct {
	Root    core.Image   // zero for the host's root
	Volumes []core.Image // in the order of VolumeImages
}

// VolumeImages are the images that are mounted as volumes.
func (l Launch) VolumeImages() (list []*mesosv1.Image) {
	for _, v := range l.Container.GetVolumes() {
		if v.Image != nil {
			list = append(list, v.GetImage())
		}
	}
	return list
}

// imageMounts are images as mounts of a container.
func imageMounts(found []core.Image) (list []core.ImageMount) {
	for _, img := range found {
		list = append(list, core.ImageMount{Image: img.ID})
	}
	return list
}

// imageMount mounts the image with that index, read-only.
func (l Launch) imageMount(v *mesosv1.Volume, number int) (specs.Mount, error) {
	b, err := l.volumeTarget(v)
	return ocispec.ImageMount(b.Target, number), err
}

// checkImages returns NotImplemented for images of an unsupported kind or use, and
// InvalidArgument for one without a name.
func (l Launch) checkImages() error {
	if img := l.Container.GetMesos().GetImage(); img != nil {
		if err := checkImage(img); err != nil {
			return err
		}
	}
	for _, v := range l.Container.GetVolumes() {
		if v.Image == nil {
			continue
		}
		if err := checkImage(v.GetImage()); err != nil {
			return err
		}
		if v.GetMode() != mesosv1.Volume_RO {
			return notImplemented("an image as volume in mode " + v.GetMode().String())
		}
	}
	return nil
}

func checkImage(img *mesosv1.Image) error {
	if img.GetType() != mesosv1.Image_DOCKER {
		return notImplemented("image type " + img.GetType().String())
	}
	if img.GetDocker().GetName() == "" {
		return invalid.Plainf("a docker image has no name")
	}
	return nil
}
