package guest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/invalid"
)

// driverLayers is the driver of a disk that is one of several layers. Shims also give such a disk the driver of
// its bus, and layerOption.
const driverLayers = "erofs.multi-layer"

// The options of layers. A file system gets none of them.
const (
	layerPrefix     = "X-kata."
	layerOption     = layerPrefix + "multi-layer=true"
	upperOption     = layerPrefix + "overlay-upper"
	lowerOption     = layerPrefix + "overlay-lower"
	tableOption     = layerPrefix + "gpt-partitioned=true"
	partitionOption = layerPrefix + "partition-number="
	mkdirOption     = layerPrefix + "mkdir.path="
	verityOption    = layerPrefix + "dmverity"
)

// layersDir has a directory with the mounts of each set of layers.
const layersDir = containersDir + "/layers"

// isLayer reports whether a storage is one of several layers.
func isLayer(s *Storage) bool {
	return s.Driver == driverLayers || slices.Contains(s.Options, layerOption)
}

// JoinLayers makes one storage of all layers in a list: an overlay of them, where the first was.
func JoinLayers(list []Storage) ([]Storage, error) {
	var out []Storage
	at := -1
	for _, s := range list {
		if !isLayer(&s) {
			out = append(out, s)
			continue
		}
		if at < 0 {
			at = len(out)
			out = append(out, Storage{Driver: driverLayers})
		}
		out[at].Layers = append(out[at].Layers, s)
	}
	if at >= 0 {
		set, err := readLayers(out[at].Layers)
		if err != nil {
			return nil, err
		}
		top := set.lower[0]
		if set.upper != nil {
			top = *set.upper
		}
		out[at].Target, out[at].Shared, out[at].Group = top.Target, top.Shared, top.Group
	}
	return out, nil
}

// layers are the layers of an overlay.
type layers struct {
	upper *Storage // nil: a directory of the machine's memory
	lower []Storage
	dirs  []string // that are made before the overlay is mounted, as the request writes them
}

// readLayers finds out which layer is which. A disk of several partitions has the layers in the order of their numbers.
func readLayers(list []Storage) (set layers, err error) {
	var numbers []int
	for _, s := range list {
		number := 0
		for _, o := range s.Options {
			if dir, ok := strings.CutPrefix(o, mkdirOption); ok {
				dir, _, _ = strings.Cut(dir, ":")
				set.dirs = append(set.dirs, dir)
			}
			if n, ok := strings.CutPrefix(o, partitionOption); ok {
				if number, err = strconv.Atoi(n); err != nil || number < 1 || number > 256 {
					return set, invalid.Errorf("layer %s: option %q: the number of a partition is wanted", clip(s.Source), clip(o))
				}
			}
		}
		if _, err := readVerity(s.Options); err != nil {
			return set, fmt.Errorf("layer %s: %w", clip(s.Source), err)
		}
		if len(s.DriverOptions) > 0 {
			return set, fmt.Errorf("layer %s: driver option %q: not served: %w", clip(s.Source), clip(s.DriverOptions[0]), errdefs.ErrNotImplemented)
		}
		if slices.Contains(s.Options, tableOption) != (number > 0) {
			return set, invalid.Errorf("layer %s: the options %s and %s go together", clip(s.Source), tableOption, partitionOption)
		}
		switch {
		case s.Type == "ext4" && !slices.Contains(s.Options, lowerOption):
			if set.upper != nil {
				return set, invalid.Errorf("layers: there are two upper ones, %s and %s", clip(set.upper.Source), clip(s.Source))
			}
			set.upper = &s
		case s.Type == "erofs" && !slices.Contains(s.Options, upperOption):
			at := len(numbers)
			for at > 0 && numbers[at-1] > number {
				at--
			}
			numbers, set.lower = slices.Insert(numbers, at, number), slices.Insert(set.lower, at, s)
		default:
			return set, invalid.Errorf("layer %s: file system %q: a lower layer is an erofs, an upper one an ext4", clip(s.Source), clip(s.Type))
		}
	}
	if len(set.lower) == 0 {
		return set, invalid.Errorf("layers: none is a lower one")
	}
	return set, nil
}

// mountLayers mounts each layer, and an overlay of them.
func mountLayers(ctx context.Context, find disks, s Storage) (undo func() error, err error) {
	set, err := readLayers(s.Layers)
	if err != nil {
		return nil, err
	}
	name := fnv.New64a()
	_, _ = name.Write([]byte(s.Target)) // never fails
	base := filepath.Join(layersDir, strconv.FormatUint(name.Sum64(), 16))
	var undos []func() error
	unmount := func() (err error) {
		for _, u := range slices.Backward(undos) {
			err = errors.Join(err, u())
		}
		if err == nil { // nothing is mounted there any more
			err = removeLayers(filepath.Base(base))
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unmount())
		}
	}()
	upper := filepath.Join(base, "u")
	if set.upper != nil {
		u, err := mountLayer(ctx, find, *set.upper, upper)
		if err != nil {
			return nil, err
		}
		undos = append(undos, u)
	}
	var lower []string
	for i, l := range set.lower {
		at := filepath.Join(base, strconv.Itoa(i))
		u, err := mountLayer(ctx, find, l, at)
		if err != nil {
			return nil, err
		}
		undos, lower = append(undos, u), append(lower, at)
	}
	for _, dir := range append([]string{"upper", "work"}, set.dirs...) {
		if err := makeInLayer(dir, upper, lower[0]); err != nil {
			return nil, err
		}
	}
	u, err := mountAs(Storage{Driver: driverOverlay, Source: "overlay", Target: s.Target, Options: []string{
		"lowerdir=" + strings.Join(lower, ":"), "upperdir=" + upper + "/upper", "workdir=" + upper + "/work",
	}}, "overlay")
	if err != nil {
		return nil, err
	}
	undos = append(undos, u)
	return unmount, nil
}

// removeLayers removes the directory of a set of layers, and the files of an upper layer in memory.
func removeLayers(name string) error {
	base, rel, err := splitPlace(layersDir)
	if err != nil {
		return err
	}
	root, err := beneath.Root(base, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(root.RemoveAll(name), root.Close())
}

// makeInLayer makes a directory that a request names: in the upper layer, or in the first lower one, where it must
// exist.
func makeInLayer(dir, upper, lower string) error {
	base := upper
	rel, ok := strings.CutPrefix(dir, "{{ mount 1 }}")
	if ok {
		base = lower
	} else {
		rel = strings.TrimPrefix(dir, "{{ mount 0 }}")
	}
	at := filepath.Join(base, filepath.Join("/", rel)) // no way up
	made, err := makePlace(at, 0o755)
	if errors.Is(err, unix.EROFS) {
		return invalid.Errorf("option %s%s: the first lower layer does not have it", mkdirOption, clip(dir))
	}
	if err != nil {
		return err
	}
	made.close()
	return nil
}

// mountLayer mounts a layer's disk, or the partition of it.
func mountLayer(ctx context.Context, find disks, l Storage, at string) (undo func() error, err error) {
	var disk string
	switch l.Driver {
	case driverBlock, driverLayers:
		disk, err = find.blockDisk(ctx, l.Source)
	case driverMMIO, driverNVDIMM:
		disk, err = find.namedDisk(ctx, l.Source)
	case driverSCSI:
		disk, err = find.scsiDisk(ctx, l.Source)
	default:
		return nil, invalid.Errorf("layer %s: a layer's driver is a disk's, not %q", clip(l.Source), clip(l.Driver))
	}
	if err != nil {
		return nil, err
	}
	var options []string
	for _, o := range l.Options {
		if number, ok := strings.CutPrefix(o, partitionOption); ok {
			if disk, err = find.namedDisk(ctx, partition(disk, number)); err != nil {
				return nil, err
			}
		}
		if !strings.HasPrefix(o, layerPrefix) {
			options = append(options, o)
		}
	}
	if l.Type == "erofs" {
		options = []string{"ro"} // its other options are ignored
	}
	v, err := readVerity(l.Options)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return mountAs(Storage{Driver: l.Driver, Source: disk, Target: at, Options: options}, l.Type)
	}
	verified, closed, err := v.open(find.dev, disk, "longshore-"+strings.ReplaceAll(strings.TrimPrefix(at, layersDir+"/"), "/", "-"))
	if err != nil {
		return nil, err
	}
	unmount := func() error { return nil }
	if verified, err = find.namedDisk(ctx, verified); err == nil {
		unmount, err = mountAs(Storage{Driver: l.Driver, Source: verified, Target: at, Options: options}, l.Type)
	}
	if err != nil {
		return nil, errors.Join(err, closed())
	}
	return func() error { return errors.Join(unmount(), closed()) }, nil
}

// partition is the device file of a disk's partition.
func partition(disk, number string) string {
	if last := disk[len(disk)-1]; last >= '0' && last <= '9' {
		return disk + "p" + number
	}
	return disk + number
}
