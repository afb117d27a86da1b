package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// Puller pulls images in the guest, for storages of the driver image_guest_pull.
type Puller struct {
	Images core.Images
	Roots  core.Roots
}

// Clean discards the images of an earlier agent.
func (p *Puller) Clean(ctx context.Context) error {
	left, err := p.Images.Checkouts(ctx)
	for _, id := range left {
		err = errors.Join(err, p.Images.Discard(ctx, id))
	}
	return err
}

// pauseBundle is where a machine's image has the bundle of pods' pause containers.
const pauseBundle = "/pause_bundle"

// typeKeys are the names under which an image's metadata say that it is a pod's own.
var typeKeys = []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"} //nolint:gochecknoglobals // a table

// mount makes an image a root filesystem at the storage's target. A pod's own container
// gets the machine's pause bundle, since hosts have no name for its image.
func (p *Puller) mount(ctx context.Context, s Storage, pause string) (undo func() error, err error) {
	sandbox, err := pullMetadata(s.DriverOptions)
	if err != nil {
		return nil, err
	}
	if sandbox {
		root := filepath.Join(pause, "rootfs")
		if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("this machine's image has no %s, which a pod's own container needs: %w", pauseBundle, errdefs.ErrNotFound)
		}
		return mountAs(Storage{Driver: driverBind, Source: root, Target: s.Target}, "bind")
	}
	if p == nil {
		return nil, fmt.Errorf("pull %s: this agent pulls no images; `longshore guest` does: %w", s.Source, errdefs.ErrNotImplemented)
	}
	if s.Source == "" {
		return nil, invalid.Errorf("no image")
	}
	img, err := p.Images.Pull(ctx, core.OwnerKata, s.Source, core.PullOptions{})
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", s.Source, err)
	}
	id := core.ID("pulled-" + strconv.FormatUint(rand.Uint64(), 36)) //nolint:gosec // no secret
	out, err := p.Images.Checkout(ctx, core.CheckoutRequest{Container: id, Image: img.ID})
	if err != nil {
		return nil, fmt.Errorf("check out %s: %w", s.Source, err)
	}
	// The end of the agent must not leave a layer.
	always := context.WithoutCancel(ctx)
	if err := os.MkdirAll(s.Target, 0o755); err != nil {
		return nil, errors.Join(err, p.Images.Discard(always, id))
	}
	if err := p.Roots.Mount(ctx, s.Target, out.Mounts, false); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", s.Source, err), p.Images.Discard(always, id))
	}
	return func() error {
		if err := p.Roots.Unmount(always, s.Target); err != nil {
			return err
		}
		return errors.Join(removeEmpty(s.Target), p.Images.Discard(always, id))
	}, nil
}

// pullMetadata reads the driver options of an image, and reports whether it is that of a
// pod's own container.
func pullMetadata(options []string) (sandbox bool, err error) {
	for _, o := range options {
		text, ok := strings.CutPrefix(o, driverPull+"=")
		if !ok {
			return false, fmt.Errorf("driver option %q: not served: %w", o, errdefs.ErrNotImplemented)
		}
		var volume struct {
			Metadata map[string]string `json:"metadata"`
		}
		if err := json.Unmarshal([]byte(text), &volume); err != nil {
			return false, invalid.Errorf("driver option %s: %v", driverPull, err)
		}
		for _, key := range typeKeys {
			sandbox = sandbox || volume.Metadata[key] == "sandbox"
		}
	}
	return sandbox, nil
}
